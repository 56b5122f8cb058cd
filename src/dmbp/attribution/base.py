"""What every attribution method is: signed maps for questions about images, behind one interface.

A method answers a `Question`, a few rows at a time; everything else (reading targets, batches,
Captum's conventions, leaving the model as it came) is done here once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial, wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch
from captum.attr import Attribution
from torch import Tensor

from dmbp.attribution.batching import BatchSize, parse_batch_size, run_with_oom_retry
from dmbp.baseline import Baseline, baseline_for
from dmbp.errors import InputError
from dmbp.linear import Linearizer, LinearNetwork, Target, TargetRows
from dmbp.linear.model.runner import check_batch
from dmbp.linear.model.signature import Output
from dmbp.linear.model.wrappers import Model, OneAtATime, evaluating
from dmbp.precision import full_precision

Inputs = TypeVar("Inputs", Tensor, tuple[Tensor, ...])
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Baselines = Tensor | float | tuple[Tensor, ...] | None

ROWS_TOGETHER = 32


@dataclass(frozen=True)
class Question:
    """Some rows to explain together.

    `linearizer` runs and freezes the model, with its other inputs as they are for these rows;
    `inputs` and `outputs` hold each row's image and what the model says there, for which it is
    asked (`ask`) when that is first needed; `baselines` what to compare with, or None. The model is
    not to be run on more than `batch` images at once. All parts of a batch share one `seed`, so an
    image's map does not depend on which part it is in.
    """

    linearizer: Linearizer
    inputs: Tensor
    ask: Callable[[], Tensor]
    rows: TargetRows
    baselines: Tensor | None
    batch: int
    seed: int
    images: int

    @cached_property
    def outputs(self) -> Tensor:
        """The model's outputs at each row's image."""
        return self.ask()

    def reference(self, reference: Baseline) -> Baseline:
        """A method's own reference, for these rows: a tensor may hold one for every image."""
        if not isinstance(reference, Tensor) or reference.dim() != self.inputs.dim():
            return reference
        if len(reference) == 1:
            return reference
        if len(reference) != self.images:
            raise InputError(f"{len(reference)} references were given for {self.images} images")
        return reference[list(self.rows.image)]

    def split(self, size: int) -> "list[Question]":
        """The same in parts of at most `size` rows, and images at once."""
        parts: list[Question] = []
        for indices in self.rows.batches(size):
            start = None if self.baselines is None else self.baselines[indices]
            rows = self.rows.pick(indices)
            parts.append(
                replace(
                    self,
                    inputs=self.inputs[indices],
                    ask=partial(self.outputs.__getitem__, indices),
                    rows=rows,
                    baselines=start,
                    batch=size,
                )
            )
        return parts

    def generator(self) -> torch.Generator:
        """A generator on the CPU, so that the numbers are the same on every device."""
        return torch.Generator().manual_seed(self.seed)


def within_wrapper(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function as Captum's are made: its `NoiseTunnel` calls what is inside a wrapper."""

    @wraps(function)
    def call(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        return function(*arguments, **keywords)

    return call


class Method(Attribution, ABC):
    """An attribution method, and a Captum `Attribution`.

    Methods that draw random numbers take a seed from `generator` at each call; without one every
    call draws the same. `output` says which of several things the model returns is explained: a
    name, a position or a function of what it returns.
    """

    takes_baselines: bool = False
    """Whether there is something that `baselines` could stand for."""

    defers_forward: bool = False
    """Whether rows may be made before the model is run, for as many classes as it had before."""

    runs_many_points: bool = False
    """Whether the model is run on several images for each row."""

    def __init__(
        self,
        model: Model,
        *,
        generator: torch.Generator | None = None,
        output: Output = None,
    ) -> None:
        super().__init__(cast("Any", model))
        self.linearizer = Linearizer(model, output=output)
        self._generator = generator

    @within_wrapper
    def attribute(
        self,
        inputs: Inputs,
        baselines: Baselines = None,
        target: Target = None,
        additional_forward_args: Any = None,
        *,
        internal_batch_size: BatchSize = "auto",
    ) -> Inputs:
        """Signed attributions, a row for each target asked.

        Shaped like the inputs, or (rows, 1, height, width) for methods of regions. `target` is a
        class, one class an image, several for a single image or in nested lists, weighted classes
        such as `{285: 1.0, 243: -1.0}`, or a function of an image's outputs; None is each image's
        highest output. `internal_batch_size` bounds how many images the model is run on at once
        and changes results by rounding alone; where memory runs out, half of it is tried. A tuple
        of one tensor comes back as one. `additional_forward_args` are the model's other inputs,
        which are held as they are; a tensor whose first dimension counts the images has a row for
        each, and then images are explained one after the other.
        """
        tensor = one_tensor(inputs)
        model = self.linearizer.model
        with evaluating(model, stacklevel=5), torch.inference_mode(False), full_precision():
            questions = self.questions(
                tensor, target, baselines, internal_batch_size, additional_forward_args
            )
            result = torch.cat(
                [found.detach() for found in run_with_oom_retry(questions, self.answer)]
            )
        result = result.to(tensor.dtype)  # a model with autocast inside has activations of another
        return cast("Inputs", (result,) if isinstance(inputs, tuple) else result)

    @abstractmethod
    def answer(self, question: Question) -> Tensor:
        """The maps of some rows."""

    def questions(
        self,
        inputs: Tensor,
        target: Target,
        baselines: Baselines,
        internal_batch_size: BatchSize,
        additional_forward_args: Any = None,
    ) -> Iterator[Question]:
        """The rows asked about, at most `internal_batch_size` together."""
        size = parse_batch_size(internal_batch_size)
        if baselines is not None and not self.takes_baselines:
            raise InputError("this method compares with nothing, so it takes no baselines")
        check_batch(inputs)
        held = self.linearizer.held(additional_forward_args, inputs)
        asked = self.linearizer.holding(held)
        foreseen = asked.foreseen(inputs, target=target) if self.defers_forward else None
        if foreseen is None or held.values:
            inputs, outputs, rows = asked.rows(inputs, target=target)
            output_of = outputs.__getitem__
        else:
            inputs, rows = foreseen
            output_of = partial(_outputs, asked, inputs)
        start_of = None if baselines is None else _baselines(baselines, inputs)
        first = self.linearizer.holding(held.pick([0]))
        if isinstance(self.linearizer.model, OneAtATime):
            size = 1  # together its images would only be branches of one graph
        size = size or self.rows_together(first, inputs, len(rows))
        size = size if self.runs_many_points else min(size, len(rows))
        seed = self._seed()
        # What belongs to one image is repeated for as many points as a method runs the model on.
        batches = rows.batches_of_images(size) if held.by_image else rows.batches(size)
        for indices in batches:
            part = rows.pick(indices)
            picked = list(part.image)
            yield Question(
                self.linearizer.holding(held.pick(picked[:1])),
                _picked(inputs, picked),
                partial(output_of, picked),
                part,
                baselines=None if start_of is None else start_of[picked],
                batch=size,
                seed=seed,
                images=len(inputs),
            )

    def rows_together(self, linearizer: Linearizer, inputs: Tensor, rows: int) -> int:  # noqa: ARG002
        """How many of `rows` rows to run at once where the caller does not say."""
        return ROWS_TOGETHER

    def _seed(self) -> int:
        source = self._generator
        if source is None:
            return 0
        return int(torch.randint(2**62, (), generator=source, device=source.device))

    def network(self, question: Question) -> LinearNetwork:
        """The linear network of some rows."""
        return question.linearizer.freeze(question.inputs, question.outputs, question.rows)


class LinearMapMethod(Method):
    """A method that finds a linear map m and attributes m ⊙ (x − reference).

    The reference is zero (m ⊙ x, as in the paper), "blur", "mean" or a tensor; `baselines` given to
    `attribute` stand for it.
    """

    takes_baselines = True

    def __init__(
        self,
        model: Model,
        *,
        reference: Baseline = None,
        generator: torch.Generator | None = None,
        output: Output = None,
    ) -> None:
        super().__init__(model, generator=generator, output=output)
        self.reference: Baseline = reference

    @abstractmethod
    def linear_map(self, question: Question) -> Tensor:
        """The map m of some rows, shaped like their inputs."""

    def answer(self, question: Question) -> Tensor:
        """The map times what the pixels add to the reference."""
        given = question.baselines is not None
        reference = question.baselines if given else question.reference(self.reference)
        displacement = question.inputs - baseline_for(question.inputs, reference)
        return self.linear_map(question) * displacement


def _outputs(linearizer: Linearizer, inputs: Tensor, images: list[int]) -> Tensor:
    """The model's outputs at some of the inputs."""
    return linearizer.outputs(_picked(inputs, images))


def _picked(inputs: Tensor, images: list[int]) -> Tensor:
    """A copy of some inputs; of all, without waiting for a GPU to be told which."""
    return inputs.clone() if images == list(range(len(inputs))) else inputs[images]


def _baselines(baselines: Baselines, inputs: Tensor) -> Tensor:
    """What Captum allows for baselines, as a tensor for every image."""
    if isinstance(baselines, tuple):
        baselines = one_tensor(baselines)
    if isinstance(baselines, int | float):
        return torch.full_like(inputs, baselines)
    return baseline_for(inputs, baselines)


def one_tensor(inputs: Any) -> Tensor:
    """The one tensor that is given, alone or in a tuple."""
    if isinstance(inputs, tuple) and len(cast("tuple[Any, ...]", inputs)) != 1:
        raise InputError(
            f"{len(cast('tuple[Any, ...]', inputs))} inputs were given; give the one to explain, "
            "and the others as additional_forward_args"
        )
    only: Any = inputs[0] if isinstance(inputs, tuple) else inputs
    if not isinstance(only, Tensor):
        raise InputError(f"inputs must be a tensor, not {type(only).__name__}")
    return only
