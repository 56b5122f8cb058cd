"""DMBP behind Captum's interface.

    >>> explainer = DMBP(model, preset="paper", iterations=20)
    >>> maps = explainer.attribute(images, target=3)       # signed, shaped like the images
    >>> d = explainer.explain(images, target=[[3, 4]])     # everything: terms, maps, history
    >>> d.history.positive.shape                           # by iteration, for both targets
    torch.Size([20, 2])

Ruiz, Agudo and Moreno-Noguer, "Generating Attribution Maps with Disentangled Masked
Backpropagation", ICCV 2021.
"""

import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from rich.progress import Progress
from torch import Tensor

from dmbp.attribution.base import Baselines, Method, Question, one_tensor
from dmbp.attribution.batching import BatchSize, rows_that_fit, run_with_oom_retry
from dmbp.decompose import (
    Baseline,
    Combine,
    Decomposer,
    Decomposition,
    Precision,
    Settings,
    concatenate,
    resolve_settings,
)
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import MOST_BYTES, prepare
from dmbp.errors import DMBPError
from dmbp.linear import Linearizer, Selection, Smoothing, Target
from dmbp.linear.model.signature import Output
from dmbp.linear.model.wrappers import Model, evaluating, unwrapped

ROWS_TOGETHER_ON_CPU = 4

ROWS_TOGETHER_ON_GPU = 128
"""Beyond, an image costs the same."""

ROWS_THAT_SURELY_FIT = 8


class DMBP(Method):
    """Explains any model that `dmbp.linearize` can freeze.

    `preset` is "fast" (50 iterations, a blurred reference, each stream keeps its own signs) or
    "paper" (200 iterations at 0.01, zero reference, plain sum); what else is given overrides it.
    `smooth` is how smooth activations are frozen, by their "tangent", a "secant" or `Pieces(k)`,
    which may be written "pieces:k"; `sites` names those activations that masks are learned for, as
    `layer4*` does; `output` says which of several things the model returns is explained.
    """

    takes_baselines = True
    defers_forward = True

    def __init__(
        self,
        model: Model,
        *,
        preset: str = "fast",
        objective: Literal["all", "posneg", "pos"] | None = None,
        iterations: int | None = None,
        learning_rate: float | None = None,
        reference: Baseline | Literal["preset"] = "preset",
        combine: Combine | None = None,
        precision: Precision | None = None,
        smooth: Smoothing = "tangent",
        sites: Selection = None,
        output: Output = None,
    ) -> None:
        model = unwrapped(model)  # and tells of it once
        super().__init__(model)
        self.linearizer = Linearizer(model, smooth=smooth, sites=sites, output=output)
        settings = resolve_settings(
            preset,
            objective=objective,
            iterations=iterations,
            learning_rate=learning_rate,
            combine=combine,
            precision=precision,
        )
        self._reference_given = not isinstance(reference, str) or reference != "preset"
        if self._reference_given:
            settings = replace(settings, reference=reference)
        self.settings: Settings = settings
        self._decomposer = Decomposer()

    def described(self) -> dict[str, str | int | float]:
        """All settings as plain values, for a file or a report."""
        return {**self.settings.described(), **self.linearizer.described()}

    @staticmethod
    def prepare(
        like: Tensor,
        *,
        preset: str = "fast",
        objective: str | None = None,
        precision: Precision | None = None,
    ) -> None:
        """Begin what the first explanation of inputs `like` these takes long to do.

        On a GPU that is compiling kernels, which goes on beside whatever else is done meanwhile,
        such as loading the model.
        """
        settings = resolve_settings(preset, objective=objective, precision=precision)
        prepare(like, loss=OBJECTIVES[settings.objective], precision=settings.precision)

    def rows_together(self, linearizer: Linearizer, inputs: Tensor, rows: int) -> int:
        """On a CPU a larger batch is no faster; on a GPU what fits."""
        if inputs.device.type != "cuda":
            return ROWS_TOGETHER_ON_CPU
        if rows <= ROWS_THAT_SURELY_FIT:
            return rows
        try:
            elements = linearizer.masked_elements(inputs[:1])
        except DMBPError:  # it takes batches of one size only
            return rows
        return rows_that_fit(elements * MOST_BYTES, inputs.device, most=ROWS_TOGETHER_ON_GPU)

    def answer(self, question: Question) -> Tensor:
        """The signed attributions of some rows."""
        return self._decompose(question).attribution

    def explain(
        self,
        inputs: Tensor,
        *,
        target: Target = None,
        baselines: Baselines = None,
        additional_forward_args: Any = None,
        internal_batch_size: BatchSize = "auto",
        show_progress: bool = False,
        on_iteration: Callable[[], None] | None = None,
    ) -> Decomposition:
        """The whole decomposition, a row for each target of each image.

        `target` and `additional_forward_args` are as for `attribute`. At most
        `internal_batch_size` rows are learned together, which changes results by rounding alone;
        "auto" is as many as fit into memory.
        """
        with evaluating(self.linearizer.model), torch.inference_mode(False):
            inputs = one_tensor(inputs)
            questions = list(
                self.questions(
                    inputs, target, baselines, internal_batch_size, additional_forward_args
                )
            )
            total = len(questions) * self.settings.iterations
            with _progress(show_progress, total, on_iteration) as advance:
                return concatenate(
                    list(
                        run_with_oom_retry(
                            questions, lambda question: self._decompose(question, advance)
                        )
                    )
                )

    def _decompose(
        self, question: Question, on_iteration: Callable[[], None] | None = None
    ) -> Decomposition:
        settings = replace(self.settings, reference=self._reference(question))
        try:
            found = self._decomposer.decompose(
                question.linearizer,
                question.inputs,
                outputs=lambda: question.outputs,
                rows=question.rows,
                settings=settings,
                on_iteration=on_iteration,
            )
        except torch.OutOfMemoryError:
            self._decomposer.forget()
            raise
        _tell_of_blanks(found)
        return found

    def _reference(self, question: Question) -> Baseline:
        if question.baselines is not None:
            return question.baselines
        if not self._reference_given and question.inputs.dim() != 4:
            return None  # nothing to blur but images
        return question.reference(self.settings.reference)


def _tell_of_blanks(found: Decomposition) -> None:
    """Warn of explanations that show nothing, which are true but easily taken for a fault."""
    shown = found.positive_map.flatten(1).any(1) | found.negative_map.flatten(1).any(1)
    blank, rounded = torch.stack([~shown, found.is_rounding]).sum(1).tolist()
    if blank:
        warnings.warn(
            f"{blank} of {len(shown)} maps are zero everywhere: around these inputs no pixel moves "
            "the score, because every path from them is closed, rounded (sign, round) or cancelled",
            stacklevel=4,
        )
    if rounded:
        warnings.warn(
            f"{rounded} of {len(shown)} maps are nothing but rounding: the model's score hardly "
            "depends on what tells these inputs from their reference (a blurred copy, by default); "
            "are its weights loaded, and its batch norm's statistics?",
            stacklevel=4,
        )


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
