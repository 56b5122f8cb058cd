"""DMBP behind Captum's interface.

    >>> explainer = DMBP(model, preset="paper", iterations=20)
    >>> maps = explainer.attribute(images, target=3)       # signed, shaped like the images
    >>> d = explainer.explain(images, target=[[3, 4]])     # everything: terms, maps, history
    >>> d.history.positive.shape                           # by iteration, for both targets
    torch.Size([20, 2])

Ruiz, Agudo and Moreno-Noguer, "Generating Attribution Maps with Disentangled Masked
Backpropagation", ICCV 2021.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, TypeVar, cast

import torch
from captum.attr import Attribution
from rich.progress import Progress
from torch import Tensor

from dmbp.decompose import (
    PRESETS,
    Combine,
    Decomposition,
    Reference,
    Settings,
    concatenate,
    decompose,
)
from dmbp.errors import InputError
from dmbp.linear import Linearizer, Rows, Target
from dmbp.linear.capture import Model, evaluating
from dmbp.names import known

Inputs = TypeVar("Inputs", Tensor, tuple[Tensor, ...])


class DMBP(Attribution):
    """Explains any model that `dmbp.linearize` can freeze.

    `preset` is "fast" (50 iterations, a blurred reference, each stream keeps its own signs) or
    "paper" (200 iterations at 0.01, zero reference, plain sum); what else is given overrides it.
    """

    def __init__(
        self,
        model: Model,
        *,
        preset: str = "fast",
        objective: Literal["all", "posneg", "pos"] | None = None,
        iterations: int | None = None,
        learning_rate: float | None = None,
        reference: Reference | Literal["preset"] = "preset",
        combine: Combine | None = None,
    ) -> None:
        super().__init__(model)
        known("preset", preset, PRESETS)
        given: dict[str, Any] = {
            "objective": objective,
            "iterations": iterations,
            "learning_rate": learning_rate,
            "combine": combine,
        }
        given = {name: value for name, value in given.items() if value is not None}
        self._reference_given = not isinstance(reference, str) or reference != "preset"
        if self._reference_given:
            given["reference"] = reference
        self.settings: Settings = replace(PRESETS[preset], **given)
        self._linearizer = Linearizer(model)

    def attribute(
        self,
        inputs: Inputs,
        baselines: Tensor | None = None,
        target: Target = None,
        additional_forward_args: None = None,
        *,
        internal_batch_size: int | None = None,
        show_progress: bool = False,
    ) -> Inputs:
        """Signed attributions shaped like the inputs, one for each target asked.

        `baselines` is Captum's name for the reference. A tuple of one tensor comes back as one.
        """
        if additional_forward_args is not None:
            raise InputError("models with additional_forward_args are not supported")
        tensor = _one_tensor(inputs)
        result = self.explain(
            tensor,
            baselines=baselines,
            target=target,
            internal_batch_size=internal_batch_size,
            show_progress=show_progress,
        ).attribution
        return cast("Inputs", (result,) if isinstance(inputs, tuple) else result)

    def explain(
        self,
        inputs: Tensor,
        *,
        target: Target = None,
        baselines: Tensor | None = None,
        internal_batch_size: int | None = None,
        show_progress: bool = False,
        on_iteration: Callable[[], None] | None = None,
    ) -> Decomposition:
        """The whole decomposition, a row for each target of each image.

        `target`: a class, one class an image, several for a single image or in nested lists, or
        weighted classes such as `{285: 1.0, 243: -1.0}`; None is each image's highest output.
        At most `internal_batch_size` rows are learned together, which changes no result.
        """
        if internal_batch_size is not None and internal_batch_size < 1:
            raise InputError(f"internal_batch_size must be 1 or more, not {internal_batch_size}")
        with evaluating(self._linearizer.model), torch.inference_mode(False):
            inputs, outputs, rows = self._linearizer.rows(inputs, target=target)
            parts = list(_batches(rows, internal_batch_size or len(rows.labels)))
            total = len(parts) * self.settings.iterations
            with _progress(show_progress, total, on_iteration) as advance:
                return concatenate(
                    [
                        decompose(
                            self._linearizer.freeze(inputs, outputs, part),
                            self._settings_for(inputs, baselines, part),
                            on_iteration=advance,
                        )
                        for part in parts
                    ]
                )

    def _settings_for(self, inputs: Tensor, baselines: Tensor | None, rows: Rows) -> Settings:
        if baselines is not None:
            return replace(self.settings, reference=_rows_of(baselines, inputs, rows))
        if not self._reference_given and inputs.dim() != 4:
            return replace(self.settings, reference=None)  # nothing to blur but images
        return replace(self.settings, reference=_rows_of(self.settings.reference, inputs, rows))


def _rows_of(reference: Reference, inputs: Tensor, rows: Rows) -> Reference:
    """A reference given for every image, as one for every row."""
    if isinstance(reference, Tensor) and reference.shape[:1] == inputs.shape[:1]:
        return reference[torch.tensor(rows.image, device=reference.device)]
    return reference


def _one_tensor(inputs: Tensor | tuple[Tensor, ...]) -> Tensor:
    if isinstance(inputs, Tensor):
        return inputs
    if len(inputs) != 1:
        raise InputError(f"{len(inputs)} inputs were given; dmbp explains models of one")
    return inputs[0]


def _batches(rows: Rows, size: int) -> Iterator[Rows]:
    for start in range(0, len(rows.labels), size):
        part = slice(start, start + size)
        yield Rows(rows.image[part], rows.labels[part], rows.classes)


@contextmanager
def _progress(
    show: bool, total: int, on_iteration: Callable[[], None] | None
) -> Generator[Callable[[], None] | None]:
    if not show:
        yield on_iteration
        return
    with Progress(transient=True) as progress:
        task = progress.add_task("DMBP", total=total)

        def advance() -> None:
            progress.advance(task)
            if on_iteration is not None:
                on_iteration()

        yield advance
