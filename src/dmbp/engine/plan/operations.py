"""The steps of a linear network as engines run them: forward on both streams, and transposed.

An affine operation's transpose does not depend on the stream, so the backward pass of a row needs
one gradient, that of the stream whose seed is not zero. `choose_operation` returns the fastest
implementation of a step. A step without a fast one becomes a `GeneralOperation`, which runs the
step itself and takes its transpose from autograd.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from dmbp.engine.gradients import vector_products
from dmbp.engine.plan.convolution import Convolution
from dmbp.engine.plan.kernels import Kernels, Unpool, square_windows
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
from dmbp.linear.steps import LinearStep, Slot


class Operation(Protocol):
    """One affine step: a function of earlier values, and its transpose.

    Attributes:
        reads: The indices of the values it reads.
        stacks: Whether its result is both streams stacked in one tensor.
    """

    reads: list[int]
    stacks: bool

    def forward(self, values: Sequence[Value]) -> Value:
        """Return both streams' result."""
        ...

    def transpose(self, gradient: Any) -> Sequence[Any]:
        """Return the gradient with respect to each value read; None for a value without effect."""
        ...


class GeneralOperation:
    """Any affine step, run on each stream separately; autograd records its transpose once."""

    stacks = False

    def __init__(self, step: LinearStep, examples: Sequence[Example]) -> None:
        by_index = dict(zip(step.reads, examples, strict=True))  # a value read twice counts once
        self.reads = list(by_index)
        self._step = step
        with torch.enable_grad():
            self._variables = {k: _as_variables(example.value) for k, example in by_index.items()}
            self._result = step.apply(self._variables)

    def forward(self, values: Sequence[Value]) -> Value:
        """Apply the step to each stream."""
        halves = [split_streams(value) for value in values]
        results = [
            self._step.apply(dict(zip(self.reads, stream, strict=True)))
            for stream in (
                [half.positive for half in halves],
                [half.negative for half in halves],
            )
        ]
        return StreamPair(*results)

    def transpose(self, gradient: Any) -> Sequence[Any]:
        """Apply the transpose that autograd recorded."""
        results, gradients = _with_gradients(self._result, gradient)
        if not results:
            return [None] * len(self.reads)
        leaves = [leaf for value in self._variables.values() for leaf in _leaves(value)]
        leaf_gradients = iter(vector_products(results, leaves, gradients, retain_graph=True))
        return [_arrange_like(self._variables[index], leaf_gradients) for index in self.reads]


def _as_variables(value: Any) -> Any:
    """Copy nested tensors as leaves of an autograd graph."""
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.is_floating_point())
    if isinstance(value, list | tuple):
        return type(value)(_as_variables(item) for item in value)
    return value


def _leaves(value: Any) -> list[Tensor]:
    """Return the tensors that require a gradient, in order."""
    if isinstance(value, Tensor):
        return [value] if value.requires_grad else []
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    return []


def _arrange_like(value: Any, gradients: Iterator[Tensor | None]) -> Any:
    """Arrange the gradients of a value's leaves in the nested form of the value."""
    if isinstance(value, Tensor):
        return next(gradients) if value.requires_grad else None
    if isinstance(value, list | tuple):
        return [_arrange_like(item, gradients) for item in value]
    return None


def _with_gradients(result: Any, gradient: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors of a result that have a gradient, and their gradients."""
    if gradient is None:
        return [], []
    if isinstance(result, Tensor):  # a result overwritten with constants has none
        return ([result], [gradient]) if result.requires_grad else ([], [])
    pairs = [_with_gradients(item, part) for item, part in zip(result, gradient, strict=True)]
    return [r for pair in pairs for r in pair[0]], [g for pair in pairs for g in pair[1]]


class RowByRowOperation(GeneralOperation):
    """An affine step that never mixes rows, run on both streams at once."""

    stacks = True

    def forward(self, values: Sequence[Value]) -> Tensor:
        """Apply the step to the rows of both streams."""
        by_index = dict(zip(self.reads, [stacked(value) for value in values], strict=True))
        return self._step.apply(by_index)


class ConvolutionOperation:
    """A 2d convolution of images."""

    stacks = True

    def __init__(self, step: LinearStep, example: Tensor, kernels: Kernels) -> None:
        self.reads = step.reads
        arguments = convolution_arguments(step)
        self.convolution = Convolution(*arguments, example=example, kernels=kernels)

    def forward(self, values: Sequence[Value], mask: Tensor | None = None) -> Tensor:
        """Convolve both streams, and multiply the result by a mask if one is passed."""
        return self.convolution.forward(channels_last(stacked(values[0])), mask)

    def transpose(self, gradient: Tensor) -> Sequence[Tensor]:
        """Apply the transposed convolution."""
        return [self.convolution.transpose(gradient)]

    def prepare(self) -> None:
        """Prepare the weights for both directions."""
        self.convolution.prepare()


class ScaleOperation:
    """Batch norm that does not follow a convolution: a scale and a shift per channel."""

    stacks = True

    def __init__(self, step: LinearStep, example: Tensor) -> None:
        self.reads = step.reads
        shape = (1, -1, *(1,) * (example.dim() - 2))
        self._scale, self._shift = (part.view(shape) for part in scale_and_shift(step))

    def forward(self, values: Sequence[Value]) -> Tensor:
        """Scale and shift both streams."""
        return torch.addcmul(self._shift, stacked(values[0]), self._scale)

    def transpose(self, gradient: Tensor) -> Sequence[Tensor]:
        """Scale the gradient."""
        return [gradient * self._scale]


class SumOperation:
    """The sum of two values of the same shape."""

    stacks = True

    def __init__(self, step: LinearStep) -> None:
        self.reads = step.reads

    def forward(self, values: Sequence[Value]) -> Tensor:
        """Add both values."""
        return stacked(values[0]) + stacked(values[1])

    def transpose(self, gradient: Tensor) -> Sequence[Tensor]:
        """Return the gradient for both values."""
        return [gradient, gradient]


class ConcatenationOperation:
    """Concatenation along the channels."""

    stacks = True

    def __init__(self, step: LinearStep, examples: Sequence[Tensor]) -> None:
        self.reads = step.reads
        self._sizes = [example.shape[1] for example in examples]

    def forward(self, values: Sequence[Value]) -> Tensor:
        """Concatenate the values of both streams."""
        return torch.cat([stacked(value) for value in values], 1)

    def transpose(self, gradient: Tensor) -> Sequence[Tensor]:
        """Split the gradient by channels; GPU kernels read the parts without a copy."""
        parts = gradient.split(self._sizes, 1)
        return parts if gradient.is_cuda else [channels_last(part) for part in parts]


class GatherOperation:
    """Max-pooling that picks the winners at x, on images in channels-last memory order."""

    stacks = True

    def __init__(self, step: LinearStep, example: Tensor, kernels: Kernels) -> None:
        assert isinstance(step.function, Gather)
        self.reads = step.reads
        self._winners = step.function.index
        self._windows = square_windows(step)
        self._input_size, self._output_size = example.shape[2:], self._winners.shape[2:]
        self._kernels = kernels

    @cached_property
    def _index(self) -> Tensor:
        return self._winners.permute(0, 2, 3, 1).flatten(1, 2).contiguous()

    @cached_property
    def _index_of_both(self) -> Tensor:
        return torch.cat([self._index, self._index])

    @cached_property
    def _unpool(self) -> Unpool | None:
        if self._windows is None:
            return None
        return self._kernels.unpooling(self._windows, tuple(self._input_size))

    def prepare(self) -> None:
        """Prepare the indices and the back end's kernel."""
        _ = self._index_of_both, self._unpool

    def forward(self, values: Sequence[Value]) -> Tensor:
        """Return the value of each window's winner, for both streams."""
        positions = _positions(channels_last(stacked(values[0])))
        return _image(positions.gather(1, self._index_of_both), self._output_size)

    def transpose(self, gradient: Tensor) -> Sequence[Tensor]:
        """Return, for each pixel, the sum of the gradients of the windows it won."""
        is_double = gradient.dtype == torch.float64  # kernels add in single precision
        if self._unpool is not None and not is_double:
            return [self._unpool(channels_last(gradient))]
        index = self._index if len(gradient) == len(self._winners) else self._index_of_both
        result = gradient.new_zeros(len(index), self._input_size.numel(), index.shape[2])
        result.scatter_add_(1, index, _positions(channels_last(gradient)))
        return [_image(result, self._input_size)]


def _positions(images: Tensor) -> Tensor:
    """View channels-last images as (rows, positions, channels)."""
    return images.permute(0, 2, 3, 1).flatten(1, 2)


def _image(positions: Tensor, size: torch.Size) -> Tensor:
    """View (rows, positions, channels) as channels-last images."""
    return positions.unflatten(1, size).permute(0, 3, 1, 2)


def choose_operation(step: LinearStep, examples: Sequence[Example], kernels: Kernels) -> Operation:
    """Return the fastest operation for a step, given the form of the values it reads."""
    first = examples[0]
    for suits, make in _IMAGE_OPERATIONS:
        if first.is_image and suits(step, examples):
            return make(step, [example.value for example in examples], kernels)
    if first.stacks and any(suits(step, examples) for suits in _ROW_BY_ROW):
        return RowByRowOperation(step, examples)
    return GeneralOperation(step, examples)


Suits = Callable[[LinearStep, Sequence[Example]], bool]
"""Returns whether an operation can run a step that reads values of these forms."""

Make = Callable[[LinearStep, Sequence[Any], Kernels], Operation]
"""Makes the operation for a step from example values of what it reads."""


def _argument(step: LinearStep, position: int, default: Any) -> Any:
    return step.arguments[position] if position < len(step.arguments) else default


def _is_linear(step: LinearStep, examples: Sequence[Example]) -> bool:
    return step.operation == "aten.linear.default" and examples[0].value.dim() >= 2


def _is_average(step: LinearStep, _: Sequence[Example]) -> bool:
    return step.operation in {"aten.adaptive_avg_pool2d.default", "aten.avg_pool2d.default"}


def _is_flattening(step: LinearStep, _: Sequence[Example]) -> bool:
    return step.operation == "aten.flatten.using_ints" and _argument(step, 1, 0) >= 1


def _is_mean(step: LinearStep, examples: Sequence[Example]) -> bool:
    if step.operation != "aten.mean.dim":
        return False
    rank = examples[0].value.dim()
    return 0 not in {d % rank for d in _argument(step, 1, None) or range(rank)}


_ROW_BY_ROW: Sequence[Suits] = [_is_linear, _is_average, _is_flattening, _is_mean]
"""Operations that never mix rows in dimension 0, so that both streams run at once."""


def _is_convolution(step: LinearStep, _: Sequence[Example]) -> bool:
    return step.operation == CONVOLUTION and not step.keywords and len(step.reads) == 1


def _is_batch_norm(step: LinearStep, _: Sequence[Example]) -> bool:
    return step.operation == BATCH_NORM and len(step.reads) == 1


def _is_sum(step: LinearStep, examples: Sequence[Example]) -> bool:
    """Return whether a step adds two values of the same shape."""
    return (
        step.operation == "aten.add.Tensor"
        and len(step.arguments) == 2
        and not step.keywords
        and len(examples) == 2
        and all(example.stacks for example in examples)
        and len({example.value.shape for example in examples}) == 1
    )


def _is_concatenation(step: LinearStep, examples: Sequence[Example]) -> bool:
    if step.operation != "aten.cat.default" or _argument(step, 1, 0) != 1:
        return False
    return all(isinstance(item, Slot) for item in step.arguments[0]) and all(
        example.stacks for example in examples
    )


def _is_pooling(step: LinearStep, examples: Sequence[Example]) -> bool:
    return (
        isinstance(step.function, Gather)
        and step.function.dimensions == 2
        and not step.function.with_index
        and len(examples) == 1
    )


_IMAGE_OPERATIONS: Sequence[tuple[Suits, Make]] = [
    (_is_convolution, lambda step, values, kernels: ConvolutionOperation(step, values[0], kernels)),
    (_is_batch_norm, lambda step, values, _: ScaleOperation(step, values[0])),
    (_is_sum, lambda step, _, __: SumOperation(step)),
    (_is_concatenation, lambda step, values, _: ConcatenationOperation(step, values)),
    (_is_pooling, lambda step, values, kernels: GatherOperation(step, values[0], kernels)),
]
"""Operations for batches of images; the first one that suits a step is used."""
