"""Max-pooling whose windows are square, which GPUs have kernels for.

Any affine step, as it is: what a fast engine does with operations it knows nothing about.

The steps of a linear network as a fast engine runs them: forward on both streams, back on one.

Backward there is one gradient a row, for whichever stream the loss touches: an affine operation's
transpose does not depend on the stream.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from dmbp.engine.plan.convolution import Convolution
from dmbp.engine.plan.gates import has_triton
from dmbp.engine.plan.rewrites import (
    BATCH_NORM,
    CONVOLUTION,
    convolution_arguments,
    scale_and_shift,
)
from dmbp.engine.plan.streams import (
    Example,
    StreamPair,
    Value,
    channels_last,
    split_streams,
    stacked,
)
from dmbp.linear.rules.choices import Gather
from dmbp.linear.steps import Slot, Step

MAX_POOL = "aten.max_pool2d.default"


@dataclass(frozen=True)
class Pooling:
    """Square windows of a max-pooling."""

    step: Step
    kernel: int
    stride: int
    padding: int

    @property
    def overlaps(self) -> bool:
        """Whether a pixel may be in several windows."""
        return self.kernel > self.stride

    @property
    def index(self) -> Tensor:
        """The winners' places in what is read."""
        assert isinstance(self.step.function, Gather)
        return self.step.function.index


def square_windows(step: Step) -> Pooling | None:
    """The windows of a step, where it is a max-pooling and they are square."""
    if step.operation != MAX_POOL or not isinstance(step.function, Gather) or step.keywords:
        return None
    given = [list(a) if isinstance(a, list | tuple) else a for a in step.arguments[1:]]
    kernel = given[0]
    stride = given[1] if len(given) > 1 and given[1] else kernel
    padding = given[2] if len(given) > 2 else [0, 0]
    dilation = given[3] if len(given) > 3 else [1, 1]
    square = all(len(set(pair)) == 1 for pair in (kernel, stride, padding))
    if not square or list(dilation) != [1, 1] or kernel[0] ** 2 > 255:
        return None
    return Pooling(step, kernel[0], stride[0], padding[0])


class GeneralOperation:
    """Any other affine step, on each stream alone; its transpose by autograd, recorded once."""

    stacks = False

    def __init__(self, step: Step, examples: Sequence[Example]) -> None:
        given = dict(zip(step.reads, examples, strict=True))  # what is read twice counts once
        self.reads = list(given)
        self._step = step
        with torch.enable_grad():
            self._given = {k: _as_variables(example.value) for k, example in given.items()}
            self._result = step.apply(self._given)

    def forward(self, values: Sequence[Value]) -> Value:
        """The step's function of each stream."""
        halves = [split_streams(value) for value in values]
        results = [
            self._step.apply(dict(zip(self.reads, side, strict=True)))
            for side in (
                [half.positive for half in halves],
                [half.negative for half in halves],
            )
        ]
        return StreamPair(*results)

    def transpose(self, gradient: Any) -> Sequence[Any]:
        """The recorded function, backwards."""
        results, gradients = _pairs(self._result, gradient)
        if not results:
            return [None] * len(self.reads)
        leaves = [leaf for given in self._given.values() for leaf in _leaves(given)]
        found = iter(
            torch.autograd.grad(results, leaves, gradients, retain_graph=True, allow_unused=True)
        )
        return [_like(self._given[index], found) for index in self.reads]


def _as_variables(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.is_floating_point())
    if isinstance(value, list | tuple):
        return type(value)(_as_variables(item) for item in value)
    return value


def _leaves(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.requires_grad else []
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    return []


def _like(value: Any, found: Any) -> Any:
    """Gradients in the form of the value they are of."""
    if isinstance(value, Tensor):
        return next(found) if value.requires_grad else None
    if isinstance(value, list | tuple):
        return [_like(item, found) for item in value]
    return None


def _pairs(result: Any, gradient: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors of a result that have a gradient, and the gradients."""
    if gradient is None:
        return [], []
    if isinstance(result, Tensor):  # one that constants were written over has no gradient
        return ([result], [gradient]) if result.requires_grad else ([], [])
    pairs = [_pairs(item, part) for item, part in zip(result, gradient, strict=True)]
    return [r for pair in pairs for r in pair[0]], [g for pair in pairs for g in pair[1]]


class RowByRowOperation(GeneralOperation):
    """An operation that never mixes rows: both streams at once."""

    stacks = True

    def forward(self, values: Sequence[Value]) -> Tensor:
        """The step's function of all rows."""
        given = dict(zip(self.reads, [stacked(value) for value in values], strict=True))
        return self._step.apply(given)


class Operation(Protocol):
    """One step: a function of earlier values, and its transpose.

    `stacks`: whether the result is both streams in one tensor.
    """

    reads: list[int]
    stacks: bool

    def forward(self, values: Sequence[Value]) -> Value:
        """Both streams' result."""
        ...

    def transpose(self, gradient: Any) -> Sequence[Any]:
        """The gradient in each value read, from that in the result; None where there is none."""
        ...


class ConvolutionOperation:
    """A convolution."""

    stacks = True

    def __init__(self, step: Step, example: Tensor) -> None:
        self.reads = step.reads
        self.convolution = Convolution(*convolution_arguments(step), example=example)

    def forward(self, values: Sequence[Value], mask: Tensor | None = None) -> Tensor:
        """The convolution, times a mask where one is given."""
        return self.convolution.forward(channels_last(stacked(values[0])), mask)

    def transpose(self, gradient: Tensor) -> Sequence[Tensor]:
        """The transposed convolution."""
        return [self.convolution.transpose(gradient)]

    def prepare(self) -> None:
        """Make what runs it."""
        self.convolution.prepare()


class ScaleOperation:
    """Batch norm that no convolution stands before: a scale and a shift by channel."""

    stacks = True

    def __init__(self, step: Step, example: Tensor) -> None:
        self.reads = step.reads
        shape = (1, -1, *(1,) * (example.dim() - 2))
        self._scale, self._shift = (part.view(shape) for part in scale_and_shift(step))

    def forward(self, values: Sequence[Value]) -> Tensor:
        """Scaled and shifted."""
        return torch.addcmul(self._shift, stacked(values[0]), self._scale)

    def transpose(self, gradient: Tensor) -> Sequence[Tensor]:
        """Scaled."""
        return [gradient * self._scale]


class SumOperation:
    """Two values of one shape, added."""

    stacks = True

    def __init__(self, step: Step) -> None:
        self.reads = step.reads

    def forward(self, values: Sequence[Value]) -> Tensor:
        """The sum."""
        return stacked(values[0]) + stacked(values[1])

    def transpose(self, gradient: Tensor) -> Sequence[Tensor]:
        """The gradient to both."""
        return [gradient, gradient]


class ConcatenationOperation:
    """Values side by side along the channels."""

    stacks = True

    def __init__(self, step: Step, examples: Sequence[Tensor]) -> None:
        self.reads = step.reads
        self._sizes = [example.shape[1] for example in examples]

    def forward(self, values: Sequence[Value]) -> Tensor:
        """All channels."""
        return torch.cat([stacked(value) for value in values], 1)

    def transpose(self, gradient: Tensor) -> Sequence[Tensor]:
        """Each its own channels; a GPU's kernels take them from where they are."""
        parts = gradient.split(self._sizes, 1)
        return parts if gradient.is_cuda else [channels_last(part) for part in parts]


class GatherOperation:
    """Max-pooling with x's winners, picked in channels-last order as it stands in memory."""

    stacks = True

    def __init__(self, step: Step, example: Tensor) -> None:
        assert isinstance(step.function, Gather)
        self.reads = step.reads
        self._picked = step.function.index
        self._windows = square_windows(step)
        self._input_size, self._output_size = example.shape[2:], self._picked.shape[2:]

    @cached_property
    def _index(self) -> Tensor:
        return self._picked.permute(0, 2, 3, 1).flatten(1, 2).contiguous()

    @cached_property
    def _both(self) -> Tensor:
        return torch.cat([self._index, self._index])

    @cached_property
    def _winners(self) -> Tensor | None:
        """By their place in a window, where a kernel takes these."""
        if self._windows is None or not self._picked.is_cuda or not has_triton():
            return None
        from dmbp.engine.gpu.triton.windows import winners_of

        return winners_of(self._windows, self._input_size[1])

    def prepare(self) -> None:
        """Make what runs it."""
        _ = self._both, self._winners

    def forward(self, values: Sequence[Value]) -> Tensor:
        """The winners."""
        positions = _positions(channels_last(stacked(values[0])))
        return _image(positions.gather(1, self._both), self._output_size)

    def transpose(self, gradient: Tensor) -> Sequence[Tensor]:
        """What each winner gets, of every window it won."""
        is_double = gradient.dtype == torch.float64  # kernels add in single precision
        if self._windows is not None and self._winners is not None and not is_double:
            from dmbp.engine.gpu.triton.windows import unpooled

            size = tuple(self._input_size)
            return [unpooled(channels_last(gradient), self._winners, self._windows, size)]
        index = self._index if len(gradient) == len(self._picked) else self._both
        back = gradient.new_zeros(len(index), self._input_size.numel(), index.shape[2])
        back.scatter_add_(1, index, _positions(channels_last(gradient)))
        return [_image(back, self._input_size)]


def _positions(images: Tensor) -> Tensor:
    """Images in channels-last order as (rows, positions, channels); no copy."""
    return images.permute(0, 2, 3, 1).flatten(1, 2)


def _image(positions: Tensor, size: torch.Size) -> Tensor:
    """(rows, positions, channels) as images in channels-last order; no copy."""
    return positions.unflatten(1, size).permute(0, 3, 1, 2)


def operation(step: Step, examples: Sequence[Example]) -> Operation:
    """The fastest operation there is for a step, given what it reads at x."""
    first = examples[0]
    for suits, make in _TABLE:
        if first.is_image and suits(step, examples):
            return make(step, [example.value for example in examples])
    if first.stacks and any(suits(step, examples) for suits in _ROW_BY_ROW):
        return RowByRowOperation(step, examples)
    return GeneralOperation(step, examples)


Suits = Callable[[Step, Sequence[Example]], bool]
Make = Callable[[Step, Sequence[Any]], Operation]


def _argument(step: Step, position: int, default: Any) -> Any:
    return step.arguments[position] if position < len(step.arguments) else default


# How these operations keep dimension 0 apart is known: they may run on both streams at once.
def _is_linear(step: Step, examples: Sequence[Example]) -> bool:
    return step.operation == "aten.linear.default" and examples[0].value.dim() >= 2


def _is_average(step: Step, _: Sequence[Example]) -> bool:
    return step.operation in {"aten.adaptive_avg_pool2d.default", "aten.avg_pool2d.default"}


def _is_flattening(step: Step, _: Sequence[Example]) -> bool:
    return step.operation == "aten.flatten.using_ints" and _argument(step, 1, 0) >= 1


def _is_mean(step: Step, examples: Sequence[Example]) -> bool:
    if step.operation != "aten.mean.dim":
        return False
    rank = examples[0].value.dim()
    return 0 not in {d % rank for d in _argument(step, 1, None) or range(rank)}


_ROW_BY_ROW: Sequence[Suits] = [_is_linear, _is_average, _is_flattening, _is_mean]


def _is_convolution(step: Step, _: Sequence[Example]) -> bool:
    return step.operation == CONVOLUTION and not step.keywords and len(step.reads) == 1


def _is_batch_norm(step: Step, _: Sequence[Example]) -> bool:
    return step.operation == BATCH_NORM and len(step.reads) == 1


def is_sum(step: Step, examples: Sequence[Example]) -> bool:
    """Whether a step adds two values of one shape."""
    return (
        step.operation == "aten.add.Tensor"
        and len(step.arguments) == 2
        and not step.keywords
        and len(examples) == 2
        and all(example.stacks for example in examples)
        and len({example.value.shape for example in examples}) == 1
    )


def _is_concatenation(step: Step, examples: Sequence[Example]) -> bool:
    if step.operation != "aten.cat.default" or _argument(step, 1, 0) != 1:
        return False
    return all(isinstance(item, Slot) for item in step.arguments[0]) and all(
        example.stacks for example in examples
    )


def _is_pooling(step: Step, examples: Sequence[Example]) -> bool:
    return (
        isinstance(step.function, Gather)
        and step.function.dimensions == 2
        and not step.function.with_index
        and len(examples) == 1
    )


_TABLE: Sequence[tuple[Suits, Make]] = [
    (_is_convolution, lambda step, examples: ConvolutionOperation(step, examples[0])),
    (_is_batch_norm, lambda step, examples: ScaleOperation(step, examples[0])),
    (is_sum, lambda step, _: SumOperation(step)),
    (_is_concatenation, ConcatenationOperation),
    (_is_pooling, lambda step, examples: GatherOperation(step, examples[0])),
]
