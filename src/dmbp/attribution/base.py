"""The base classes of attribution methods, which are Captum `Attribution`s too.

A method answers a `Question`: a batch of rows, each one target of one image. Reading targets,
batching, retrying when memory runs out, Captum's conventions and restoring the model's state are
done here, once for all methods.
"""

from __future__ import annotations

import gc
import inspect
import operator
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from dmbp.attribution.captum_base import Attribution
from dmbp.baseline import Baseline, baseline_for
from dmbp.devices import release_memory
from dmbp.errors import InputError
from dmbp.linear import Linearizer, Question, Target
from dmbp.linear.model.checks import check_batch
from dmbp.linear.model.signature import Output
from dmbp.linear.model.wrappers import Model, OneAtATime, evaluating
from dmbp.precision import full_precision
from dmbp.validation import check_keywords

Inputs = TypeVar("Inputs", Tensor, tuple[Tensor, ...])
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Baselines = Tensor | float | tuple[Tensor, ...] | None

BatchSize = int | Literal["auto"] | None
"""How many images to run at once; "auto" (also None) lets the method decide."""

MEMORY_SHARE = 0.8
"""The share of free memory to fill; the rest is for what the estimate does not count."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Layer:
    """The layer that a method took, and the size of the map that its activations make."""

    name: str
    size: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} ({'×'.join(map(str, self.size))})"


OUT_OF_MEMORY = (
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "MPS backend out of memory",
)
"""Parts of the messages of plain `RuntimeError`s that mean that memory ran out."""

ROWS_TOGETHER = 32
"""How many rows a method runs at once unless it says otherwise."""


def wrapped_like_captum(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Wrap a function as Captum does: `NoiseTunnel` calls the function inside the wrapper."""

    @wraps(function)
    def call(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        return function(*arguments, **keywords)

    return call


def with_known_keywords(constructor: Callable[..., None]) -> Callable[..., None]:
    """Wrap a constructor so that a misspelt keyword is an error that suggests the right one."""
    parameters = inspect.signature(constructor).parameters

    @wraps(constructor)
    def construct(self: Any, *arguments: Any, **keywords: Any) -> None:
        known = [key for key in parameters if key not in ("self", "model")]
        check_keywords(keywords, [*known, "model"], f"{type(self).__name__} takes no setting")
        constructor(self, *arguments, **keywords)

    return construct


class Method(Attribution, ABC):
    """An attribution method, which is also a Captum `Attribution`.

    Subclasses implement `answer`.

    Args:
        model: A module or an exported program.
        generator: Methods that use random numbers draw a seed from it at every call; without one,
            all calls use the same numbers.
        output: Which of the model's outputs is explained: a name, a position or a function of what
            the model returns. None finds it automatically.
    """

    takes_baselines: bool = False
    """Whether the method compares images with a baseline and accepts `baselines`."""

    defers_forward: bool = False
    """Whether targets may be read before the model is run, if its classes are known."""

    runs_many_points: bool = False
    """Whether the model is run on many images for each row."""

    @property
    def run_count(self) -> int:
        """On about how many images the model is run for each row; 0 if few, or if steps tell."""
        return 0

    run_setting: str = ""
    """The setting that `run_count` follows, if there is one."""

    used_layer: Layer | None = None
    """The layer that the last call took, for methods that show one; None before the first."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Have the subclass explain misspelt keywords."""
        super().__init_subclass__(**keywords)
        if "__init__" in vars(cls):
            cls.__init__ = with_known_keywords(cls.__init__)

    @with_known_keywords
    def __init__(
        self,
        model: Model,
        *,
        generator: torch.Generator | None = None,
        output: Output = None,
    ) -> None:
        """See the class."""
        self._initialise(model, Linearizer(model, output=output), generator)

    def _initialise(
        self, model: Model, linearizer: Linearizer, generator: torch.Generator | None = None
    ) -> None:
        Attribution.__init__(self, cast("Any", model))
        self.linearizer = linearizer
        self._generator = generator

    def __getstate__(self) -> dict[str, Any]:
        """Leave Captum's reference to the model out of pickles; the linearizer has the model."""
        return {**self.__dict__, "forward_func": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the linearizer's model for Captum's."""
        vars(self).update(state)
        self.forward_func = cast("Any", self.linearizer.model)

    @wrapped_like_captum
    def attribute(
        self,
        inputs: Inputs,
        baselines: Baselines = None,
        target: Target = None,
        additional_forward_args: Any = None,
        *,
        internal_batch_size: BatchSize = "auto",
    ) -> Inputs:
        """Return signed attributions: positive speaks for the target, negative against it.

        Args:
            inputs: A batch of inputs, or a tuple of one such tensor, as in Captum.
            baselines: What to compare with, for methods that do: a tensor or a number.
            target: A class; one class for each image; several classes for a single image, or in
                nested lists; weighted classes such as `{285: 1.0, 243: -1.0}`; or a function of an
                image's outputs. None takes each image's highest output.
            additional_forward_args: The model's other inputs, which stay constant. A tensor whose
                length is the number of images has one entry for each of them, and images are then
                explained one after the other.
            internal_batch_size: The most images that the model is run on at once, which changes
                results by rounding alone. If memory runs out, half as many are tried.

        Returns:
            A map for each target, shaped like the inputs, or (rows, 1, height, width) for methods
            that attribute regions. A tuple if `inputs` is one.

        Raises:
            InputError: If the inputs or arguments do not fit the model.
            TargetError: If the model has no such target.
            CaptureError: If the method needs the model's graph, and it cannot be captured.
        """
        tensor = single_tensor(inputs)
        model = self.linearizer.model
        with evaluating(model, stacklevel=5), torch.inference_mode(False), full_precision():
            questions = self.questions(
                tensor,
                target,
                baselines=baselines,
                internal_batch_size=internal_batch_size,
                additional_forward_args=additional_forward_args,
            )
            maps = [part.detach() for part in run_with_oom_retry(questions, self.answer)]
        # Autocast inside the model makes activations, and maps, of another dtype.
        result = torch.cat(maps).to(tensor.dtype)
        return cast("Inputs", (result,) if isinstance(inputs, tuple) else result)

    @staticmethod
    def check_settings(**settings: Any) -> None:
        """Raise an `InputError` if a setting is out of range; all are passed by keyword."""

    @abstractmethod
    def answer(self, question: Question) -> Tensor:
        """Return the maps of a question, one for each row."""

    def questions(
        self,
        inputs: Tensor,
        target: Target,
        *,
        baselines: Baselines = None,
        internal_batch_size: BatchSize = "auto",
        additional_forward_args: Any = None,
        outputs: Tensor | None = None,
    ) -> Iterator[Question]:
        """Yield questions that together have all rows, each with at most `internal_batch_size`.

        `outputs` are the model's outputs at the inputs, if they are known already; the other
        arguments are those of `attribute`.
        """
        if baselines is not None and not self.takes_baselines:
            raise InputError("this method takes no baselines; leave out `baselines`")
        size = parse_batch_size(internal_batch_size)
        check_batch(inputs)
        runner = self.linearizer.runner
        extra = runner.parse_extra_inputs(additional_forward_args, inputs)
        may_defer = self.defers_forward and not extra.values and outputs is None
        deferred = runner.target_rows_without_forward(inputs, target) if may_defer else None
        if deferred is not None:
            inputs, rows = deferred
        else:
            runner = runner.with_extra_inputs(extra)
            inputs, outputs, rows = runner.target_rows(inputs, target, outputs)
        all_baselines = None if baselines is None else _baseline_tensor(baselines, inputs)
        first = self.linearizer.with_extra_inputs(extra.pick([0]))
        if isinstance(self.linearizer.model, OneAtATime):
            size = 1  # a larger batch would become a graph with one branch for each image
        size = size or self.rows_together(first, inputs, len(rows))
        size = size if self.runs_many_points else min(size, len(rows))
        seed = self._draw_seed()
        # A question has the extra inputs of a single image; they are repeated for every image that
        # the method runs the model on.
        batches = rows.batches_of_images(size) if extra.by_image else rows.batches(size)
        for indices in batches:
            batch = rows.pick(indices)
            images = list(batch.image)
            yield Question(
                self.linearizer.with_extra_inputs(extra.pick(images[:1])),
                _copy_images(inputs, images),
                batch,
                images=len(inputs),
                baselines=None if all_baselines is None else all_baselines[images],
                batch_size=size,
                seed=seed,
                known_outputs=None if outputs is None else outputs[images],
            )

    def rows_together(self, linearizer: Linearizer, inputs: Tensor, rows: int) -> int:  # noqa: ARG002
        """Return how many of `rows` rows to run at once with `internal_batch_size="auto"`."""
        return ROWS_TOGETHER

    def _draw_seed(self) -> int:
        source = self._generator
        if source is None:
            return 0
        return int(torch.randint(2**62, (), generator=source, device=source.device))


class LinearMapMethod(Method):
    """A method that finds a linear map m and attributes m ⊙ (x − reference).

    Subclasses implement `linear_map`.

    Args:
        model: A module or an exported program.
        reference: "zero" or None (m ⊙ x, as in the paper), "blur", "mean" or a tensor. `baselines`
            passed to `attribute` take its place.
        generator: Methods that use random numbers draw a seed from it at every call.
        output: Which of the model's outputs is explained; None finds it automatically.
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
        """See the class."""
        super().__init__(model, generator=generator, output=output)
        self.reference: Baseline = reference

    @abstractmethod
    def linear_map(self, question: Question) -> Tensor:
        """Return the linear map m of each row, shaped like the question's inputs."""

    def answer(self, question: Question) -> Tensor:
        """Return m ⊙ (x − reference) for each row."""
        displacement = self.displacement(question)
        return self.linear_map(question) * displacement

    def displacement(self, question: Question) -> Tensor:
        """Return x − reference for each row, shaped like the question's inputs.

        `baselines` passed to `attribute` take the place of the method's `reference`.
        """
        baseline: Baseline = question.baselines
        if baseline is None:
            baseline = question.baseline_of_rows(self.reference)
        return question.inputs - baseline_for(question.inputs, baseline)


def _copy_images(inputs: Tensor, images: list[int]) -> Tensor:
    """Return a copy of the images at these indices, which are moved to the GPU only if needed."""
    return inputs.clone() if images == list(range(len(inputs))) else inputs[images]


def _baseline_tensor(baselines: Baselines, inputs: Tensor) -> Tensor:
    """Return baselines in any form that Captum allows as a tensor shaped like the inputs."""
    if isinstance(baselines, tuple):
        baselines = single_tensor(baselines)
    if isinstance(baselines, int | float):
        return torch.full_like(inputs, baselines)
    return baseline_for(inputs, baselines)


def single_tensor(inputs: Any) -> Tensor:
    """Return `inputs` if it is a tensor, or the only tensor in a tuple of one."""
    if isinstance(inputs, tuple) and len(cast("tuple[Any, ...]", inputs)) != 1:
        raise InputError(
            f"{len(cast('tuple[Any, ...]', inputs))} inputs were given; pass the one to explain, "
            "and the others as additional_forward_args"
        )
    only: Any = inputs[0] if isinstance(inputs, tuple) else inputs
    if not isinstance(only, Tensor):
        raise InputError(f"inputs must be a tensor, not {type(only).__name__}")
    return only


def parse_batch_size(size: Any) -> int | None:
    """Return a batch size as a number, or None for "auto"."""
    if size is None or (isinstance(size, str) and size == "auto"):
        return None
    try:
        number = 0 if isinstance(size, bool | str) else operator.index(size)
    except TypeError:
        number = 0
    if number < 1:
        raise InputError(f"internal_batch_size must be 1 or more, or 'auto', not {size!r}")
    return number


def rows_that_fit(bytes_per_row: int, device: torch.device, *, max_rows: int) -> int:
    """Return how many rows fit into a GPU's free memory, at most `max_rows`."""
    free, _ = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(1, min(max_rows, int(MEMORY_SHARE * (free + kept)) // bytes_per_row))


def run_with_oom_retry(
    questions: Iterable[Question], answer: Callable[[Question], Answer]
) -> Iterator[Answer]:
    """Yield the answer to each question; if memory runs out, split this question and later ones."""
    limit: int | None = None
    for question in questions:
        waiting = deque([question])
        while waiting:
            part = waiting.popleft()
            if limit is not None and part.batch_size > limit:
                waiting.extendleft(reversed(part.split(limit)))
                continue
            try:
                result = answer(part)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not _is_out_of_memory(error):
                    raise
                limit = _half(part)
                waiting.appendleft(part)
                result = None
            if result is None:
                _release(part.inputs)
            else:
                yield result


def _half(part: Question) -> int:
    at_once = max(len(part.rows), part.batch_size)
    if at_once == 1:
        raise InputError(
            "not even a single image fits into memory; use smaller images or a smaller model"
        ) from None
    half = at_once // 2
    warnings.warn(f"{at_once} images at once do not fit into memory; continuing with {half}",
                  stacklevel=2)  # fmt: skip
    return half


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, torch.OutOfMemoryError):
        return True
    text = str(error)
    return any(words in text for words in OUT_OF_MEMORY)


def _release(like: Tensor) -> None:
    gc.collect()
    release_memory(like.device)
