"""Disentangled Masked Backpropagation as an attribution method.

    >>> explainer = DMBP(model, preset="paper", iterations=20)
    >>> maps = explainer.attribute(images, target=3)       # signed, shaped like the images
    >>> d = explainer.explain(images, target=[[3, 4]])     # everything: terms, maps, history
    >>> d.history.positive.shape                           # by iteration, for both targets
    torch.Size([20, 2])

Ruiz, Agudo and Moreno-Noguer, "Generating Attribution Maps with Disentangled Masked
Backpropagation", ICCV 2021.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from rich.progress import Progress
from torch import Tensor

from dmbp.attribution.base import (
    Baselines,
    BatchSize,
    Method,
    rows_that_fit,
    run_with_oom_retry,
    single_tensor,
)
from dmbp.decompose import (
    DEFAULT_PRESET,
    Baseline,
    ColourTester,
    Combine,
    Decomposer,
    Decomposition,
    Precision,
    Removal,
    Settings,
    concatenate,
    resolve_settings,
)
from dmbp.decompose.removal import PROGRESS_STEPS
from dmbp.decompose.settings import OBJECTIVES, OneRemoval
from dmbp.engine import (
    MAX_BYTES_PER_ELEMENT,
    ForwardPass,
    prepare,
)
from dmbp.errors import DMBPError
from dmbp.linear import Linearizer, Question, Selection, Smoothing, Target
from dmbp.linear.lines import parse_line
from dmbp.linear.model.signature import Output
from dmbp.linear.model.wrappers import Model, evaluating
from dmbp.linear.steps import parse_selection

ROWS_TOGETHER_ON_CPU = 4
"""Larger batches are no faster."""

ROWS_TOGETHER_ON_GPU = 128
"""The most rows at once; larger batches cost the same per image."""

PresetName = Literal["tested", "fast", "paper"]

OVERRIDES = ("objective", "iterations", "learning_rate", "combine", "precision",
             "window", "stride", "contexts", "floor", "removal", "mixtures")  # fmt: skip
"""The arguments that override a preset's settings."""

ROWS_THAT_SURELY_FIT = 8
"""So few rows are run at once without an estimate of their memory."""


class DMBP(Method):
    """Splits a score into evidence for the target, evidence against it, and a nuisance term.

    It explains any model that `dmbp.linearize` can freeze, and it is a Captum `Attribution`.

    Args:
        model: A module or an exported program.
        preset: "tested" (6 iterations show where evidence may be, and the model is then asked what
            each place is worth), "fast" (50 iterations, a blurred reference, each stream keeps its
            own signs) or "paper" (200 iterations at learning rate 0.01, zero reference, plain sum).
            The arguments below override the preset.
        objective: What the masks learn: "all" (the paper's loss), "posneg" or "pos" (its
            ablations).
        iterations: How many RMSProp iterations the masks are learned for.
        learning_rate: RMSProp's learning rate.
        reference: What pixels are compared with: "zero" or None, "blur", "mean" or a tensor;
            "preset" takes the preset's. `baselines` passed to `attribute` or `explain` take its
            place.
        combine: How the positive and the negative stream, whose gradients are the two linear maps,
            become one attribution if it is not tested. "sum" adds them; "own_signs" first keeps
            only those pixels of each stream that have its own sign.
        precision: The precision that masks are learned in: "auto", "float16", "bfloat16", "tf32" or
            "float32".
        window: The side of a tested window as a share of the input's side, 1/4 for images.
        stride: The distance between windows as a share of the input's side, half a window.
        contexts: 1 removes each window from the image; 2, the default, also puts it alone into an
            image where everything else is removed.
        floor: The share of a window's worth that is spread evenly over its pixels; by default the
            model chooses.
        removal: How windows are removed: "blur", "mean", "zero", "noise", a tensor, a function of
            images and a mask, or several of these, which have to agree. By default what is given
            as `reference` or `baselines`, or else blur and mean, with noise to confirm them.
        mixtures: In how many mixtures of the image with what removal leaves of it gradients are
            taken, 8 by default; they add detail to the map. 0 takes none.
        smooth: How smooth activations are frozen: by their "tangent", by a "secant" or by
            `Pieces(k)`, which may be written "pieces:k".
        sites: Patterns for the names of the activations that carry masks, such as "layer4*"; None
            takes all of them.
        output: Which of the model's outputs is explained: a name, a position or a function of what
            the model returns. None finds it automatically.

    Raises:
        InputError: If a setting is unknown or out of range.
        ModelError: If `model` is not a module or an exported program.
    """

    takes_baselines = True
    defers_forward = True

    def __init__(
        self,
        model: Model,
        *,
        preset: PresetName = DEFAULT_PRESET,
        objective: Literal["all", "posneg", "pos"] | None = None,
        iterations: int | None = None,
        learning_rate: float | None = None,
        reference: Baseline | Literal["preset"] = "preset",
        combine: Combine | None = None,
        precision: Precision | None = None,
        window: float | None = None,
        stride: float | None = None,
        contexts: int | None = None,
        floor: float | None = None,
        removal: Removal = None,
        mixtures: int | None = None,
        smooth: Smoothing = "tangent",
        sites: Selection = None,
        output: Output = None,
    ) -> None:
        """See the class."""
        linearizer = Linearizer(model, smooth=smooth, sites=sites, output=output)
        self._initialise(linearizer.model, linearizer)
        settings = resolve_settings(
            preset,
            objective=objective,
            iterations=iterations,
            learning_rate=learning_rate,
            combine=combine,
            precision=precision,
            window=window,
            stride=stride,
            contexts=contexts,
            floor=floor,
            removal=removal,
            mixtures=mixtures,
        )
        self._reference_given = not isinstance(reference, str) or reference != "preset"
        if self._reference_given:
            settings = replace(settings, reference=reference)
        self.settings: Settings = settings
        self._decomposer = Decomposer()
        self._tester = ColourTester()

    @staticmethod
    def check_settings(*, preset: str, smooth: Smoothing, sites: Selection, **others: Any) -> None:
        """Raise an `InputError` if a setting is out of range."""
        resolve_settings(preset, **{name: others[name] for name in OVERRIDES})
        parse_line(smooth)
        if sites is not None:
            parse_selection(sites)

    @property
    def run_count(self) -> int:
        """About the number of changed images by which colours are tested."""
        return 0 if self.settings.test is None else 230

    @property
    def is_recorded(self) -> bool:
        """Whether an explanation has been recorded as CUDA graphs, to be replayed.

        On a GPU, the second call with inputs of the same shape is recorded; later ones replay it.
        """
        return self._decomposer.is_recorded

    @property
    def progress_steps(self) -> int:
        """How often `on_iteration` is called for each batch: for iterations, then for tests."""
        return self.settings.iterations + (PROGRESS_STEPS if self.settings.test else 0)

    def described(self) -> dict[str, str | int | float]:
        """Return all settings as plain values, for a file or a report."""
        return {**self.settings.described(), **self.linearizer.described()}

    @staticmethod
    def prepare(
        like: Tensor,
        *,
        preset: PresetName = DEFAULT_PRESET,
        objective: str | None = None,
        precision: Precision | None = None,
    ) -> None:
        """Start compiling, in the background, the GPU kernels that explaining will need.

        Call it before loading a model to do both at once. On a CPU it does nothing.

        Args:
            like: A tensor with the device, dtype and batch size of the inputs to come.
            preset: The preset to be used.
            objective: The objective to be used, if not the preset's.
            precision: The precision to be used, if not the preset's.
        """
        settings = resolve_settings(preset, objective=objective, precision=precision)
        prepare(like, loss=OBJECTIVES[settings.objective], precision=settings.precision)

    def rows_together(self, linearizer: Linearizer, inputs: Tensor, rows: int) -> int:
        """Return a fixed number of rows on a CPU, or as many as fit into a GPU's memory."""
        if inputs.device.type != "cuda":
            return ROWS_TOGETHER_ON_CPU
        if rows <= ROWS_THAT_SURELY_FIT:
            return rows
        try:
            elements = linearizer.count_mask_elements(inputs[:1])
        except DMBPError:  # the model takes batches of one size only
            return rows
        return rows_that_fit(
            elements * MAX_BYTES_PER_ELEMENT, inputs.device, max_rows=ROWS_TOGETHER_ON_GPU
        )

    def answer(self, question: Question) -> Tensor:
        """Return the signed attributions of each row."""
        return self._decompose(question, with_outputs=False).attribution

    def explain(
        self,
        inputs: Tensor,
        *,
        target: Target = None,
        baselines: Baselines = None,
        additional_forward_args: Any = None,
        internal_batch_size: BatchSize = "auto",
        outputs: Tensor | None = None,
        show_progress: bool = False,
        on_iteration: Callable[[], None] | None = None,
    ) -> Decomposition:
        """Return the whole decomposition, a row for each target of each image.

        Args:
            inputs: A batch of inputs.
            target: What to explain, as for `attribute`.
            baselines: What to compare with, in place of the reference.
            additional_forward_args: The model's other inputs, as for `attribute`.
            internal_batch_size: The most rows that are learned together, which changes results by
                rounding alone; "auto" takes as many as fit into memory.
            outputs: The model's outputs at the inputs, if you have them already; this saves a
                forward pass. Outputs that are not the model's raise an error.
            show_progress: Whether to show a progress bar.
            on_iteration: Called after each iteration, then as windows are tested; `progress_steps`
                times for each batch.

        Returns:
            The terms, linear maps and attributions of every row.

        Raises:
            InputError: If the inputs or arguments do not fit the model.
            TargetError: If the model has no such target.
            CaptureError: If the model cannot be reproduced exactly.
        """
        with evaluating(self.linearizer.model), torch.inference_mode(False):
            questions = list(
                self.questions(
                    single_tensor(inputs),
                    target,
                    baselines=baselines,
                    internal_batch_size=internal_batch_size,
                    additional_forward_args=additional_forward_args,
                    outputs=outputs,
                )
            )
            total = len(questions) * self.progress_steps
            with _progress(show_progress, total, on_iteration) as advance:

                def decompose(question: Question) -> Decomposition:
                    return self._decompose(question, advance)

                return concatenate(list(run_with_oom_retry(questions, decompose)))

    def _decompose(
        self,
        question: Question,
        on_iteration: Callable[[], None] | None = None,
        *,
        with_outputs: bool = True,
    ) -> Decomposition:
        with torch.cuda.device_of(question.inputs):  # streams and kernels belong to its GPU
            return self._decompose_there(question, on_iteration, with_outputs=with_outputs)

    def _decompose_there(
        self, question: Question, on_iteration: Callable[[], None] | None, *, with_outputs: bool
    ) -> Decomposition:
        settings = replace(self.settings, reference=self._reference(question))
        test, removals = settings.test, self._removals(question)
        try:
            started = None if test is None else self._tester.start(question, test, removals)
            meanwhile = None if started is None else started.look_at_weights
            decomposition = self._decomposer.decompose(
                question, settings, on_iteration=on_iteration, meanwhile=meanwhile
            )
            if test is not None:
                tested = self._tester.test(
                    question,
                    decomposition.streams,
                    test,
                    removals,
                    started=started,
                    with_outputs=with_outputs,
                    on_step=on_iteration,
                )
                decomposition = replace(decomposition, tested=tested)
        except torch.OutOfMemoryError:
            self._decomposer.forget()
            self._tester.forget()
            raise
        _warn_of_blank_maps(decomposition)
        return decomposition

    def _removals(self, question: Question) -> tuple[OneRemoval, ...]:
        """Return how windows are removed; none if that depends on the inputs."""
        if self.settings.test is None:
            return ()
        removals: tuple[OneRemoval, ...] = self.settings.test.removals
        if not removals and question.baselines is None and self._reference_given:
            removals = (self.settings.reference,)
        removals = tuple(
            question.baseline_of_rows(k) if isinstance(k, Tensor) else k for k in removals
        )
        if not removals and question.baselines is not None:
            removals = (question.baselines,)
        return removals

    def forward_pass(self, inputs: Tensor, outputs: Tensor) -> ForwardPass | None:
        """Return a faster way to run the model on many images, if it is captured and there is one.

        Args:
            inputs: Inputs that were explained.
            outputs: The model's outputs at them, (images, classes).
        """
        captured = self.linearizer.captured_graph(inputs)
        return None if captured is None else self._tester.forward_pass(captured, inputs, outputs)

    def _reference(self, question: Question) -> Baseline:
        if question.baselines is not None:
            return question.baselines
        if not self._reference_given and question.inputs.dim() != 4:
            return None  # the preset's blur is for images only
        return question.baseline_of_rows(self.settings.reference)


def _warn_of_blank_maps(decomposition: Decomposition) -> None:
    """Warn if a map shows nothing: it is correct, but easily mistaken for a fault."""
    if decomposition.tested is None:
        maps = decomposition.positive_map, decomposition.negative_map
        shown = maps[0].flatten(1).any(1) | maps[1].flatten(1).any(1)
    else:
        shown = decomposition.attribution.flatten(1).any(1)
    blank, rounded = torch.stack([~shown, decomposition.is_rounding]).sum(1).tolist()
    if blank and decomposition.tested is not None:
        warnings.warn(
            f"{blank} of {len(shown)} maps are zero everywhere: no part of these inputs was found "
            "without which the score changes in one direction, however it is removed",
            stacklevel=4,
        )
    elif blank:
        warnings.warn(
            f"{blank} of {len(shown)} maps are zero everywhere: around these inputs no pixel "
            "changes the score, because every path is closed, rounded (sign, round) or cancelled",
            stacklevel=4,
        )
    if rounded:
        warnings.warn(
            f"{rounded} of {len(shown)} maps are nothing but rounding: the model's score hardly "
            "depends on how these inputs differ from their reference (a blurred copy, by default); "
            "are its weights and its batch norm's statistics loaded?",
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
