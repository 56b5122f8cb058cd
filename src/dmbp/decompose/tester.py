"""Tests the colours of questions one after the other; on a GPU, repeated kinds are recorded.

What is run on the model before there is a map, windows and mixtures, does not depend on the masks.
On a GPU it starts before they are learned, on a stream of its own: learning a single image leaves
most of the GPU idle. The rest follows once the two streams are known.

A `RecordedTest` holds all of this as three CUDA graphs, because Python launches kernels more slowly
than a GPU runs those of a few images. Nothing in them looks at a number. Whether the fast forward
passes agree with the model, outputs are finite and the weights are still those that were folded is
found out together, at the end; if not, the test is made step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from dmbp.decompose.decomposer import free_memory, has_room_for_recording
from dmbp.decompose.places import window_for
from dmbp.decompose.removal import PROGRESS_STEPS, ChangedImages
from dmbp.decompose.settings import OneRemoval, WindowTest
from dmbp.decompose.tested import (
    SHOWN,
    Candidates,
    Evidence,
    Finished,
    Run,
    Streams,
    Tested,
    TestPlan,
    confirm_colours,
    find_evidence,
    finish,
    is_open,
    join_rows,
    plan_test,
    propose,
    removals_and_checks,
    tested,
    try_others,
)
from dmbp.decompose.windows import pixel_size
from dmbp.engine import (
    ForwardPass,
    ForwardPasses,
    PendingFingerprint,
    RecordedBatch,
    fingerprint,
    input_gradients,
    run_padded,
)
from dmbp.errors import DMBPError
from dmbp.linear import Question
from dmbp.linear.capture.export import CapturedGraph
from dmbp.precision import TOLERANCE, full_precision, relative_errors

Result = TypeVar("Result")

MOST_ROWS = 16
"""The most rows of a recorded test: more keep the GPU busy without. With 64, it took VGG16 and
ViT-B/16 more memory than an H200 has."""

MOST_ROWS_OF_RECORDED_MODEL = 8
"""For so few rows the model itself is recorded, too: its kernels take less time than starting them.
It is then run on one image more for each row."""

ROUGH_DTYPES = (torch.bfloat16,)
"""What windows are tested in on CPUs with instructions for it, if that changes little. They only
propose a map: what confirms it and is reported is computed in more bits."""


@dataclass(frozen=True)
class Passes:
    """The fast forward passes of a captured graph that agree with the model at some images."""

    captured: CapturedGraph
    forward: ForwardPass
    differentiable: ForwardPass

    def are_current(self) -> bool:
        """Return whether the model's weights are those that the passes were built from."""
        state = fingerprint(self.captured.constants.values())
        return self.forward.is_current(state) and self.differentiable.is_current(state)


class RecordingTooLarge(Exception):
    """Raised if a recording would need too much of the GPU's memory."""


class RecordedTest:
    """The test of colours as CUDA graphs, for questions of one kind.

    Each has a single target, a weighted sum of outputs, for each of as many images.

    Attributes:
        passes: The forward passes that were recorded.
        is_stale: Whether the model is no longer the one that was recorded.

    Raises:
        RecordingTooLarge: If it would need too much memory.
        RuntimeError: If an operation cannot be recorded.
    """

    def __init__(
        self,
        question: Question,
        test: WindowTest,
        removals: tuple[OneRemoval, ...],
        passes: Passes,
    ) -> None:
        self.passes = passes
        inputs, outputs = question.inputs.clone(), question.outputs
        own_question = replace(question, inputs=inputs, known_outputs=outputs)
        self._streams = (question.inputs.clone(), -question.inputs)
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()
        self._are_finite: list[Tensor] = []
        self._weights: PendingFingerprint | None = None
        self.is_stale = False
        used, checks = removals_and_checks(question.inputs, removals)
        outside = torch.cuda.current_stream()
        self._stream.wait_stream(outside)
        before = torch.cuda.memory_allocated()
        with torch.cuda.stream(self._stream):
            self._changed = ChangedImages(
                own_question,
                used,
                checks,
                run=_noting_finite(passes.forward, self._are_finite),
                dtype=passes.forward.dtype,
                never_waits=True,
            )
            self._plan: TestPlan = plan_test(own_question, self._changed, test, None)
            self._warm_up()
        outside.wait_stream(self._stream)
        if not has_room_for_recording(before):
            raise RecordingTooLarge
        self._model: RecordedBatch | None = None
        self._model_agrees: list[Tensor] = []
        if len(question.inputs) <= MOST_ROWS_OF_RECORDED_MODEL:
            images = torch.cat([question.inputs] * (SHOWN + 1))
            with suppress(RuntimeError):  # the model asks the CPU for something
                self._model = RecordedBatch(question.runner.outputs, images)
        self._begin, self._evidence = self._record(self._find_evidence)
        self._middle, self._candidates = self._record(self._propose)
        self._end, self._finished = self._record(self._finish)

    def start(self, question: Question) -> bool:
        """Begin the test of a question of the same kind, beside what the GPU does otherwise.

        Returns:
            Whether the recording serves this question.
        """
        self._weights = None
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            if not self._changed.replace(question):
                return False
            self._begin[0].replay()
        return True

    def look_at_weights(self) -> None:
        """Start to compute the fingerprint of the model's tensors."""
        with torch.cuda.stream(self._stream):
            self._weights = PendingFingerprint(self.passes.captured.constants.values())

    def complete(
        self,
        question: Question,
        streams: Streams,
        run_model: Callable[[Tensor], Tensor] | None,
    ) -> Tested | None:
        """Return what was found about the question that was started; None if it is not reliable."""
        if self._weights is None:
            self.look_at_weights()
        outside = torch.cuda.current_stream()
        self._stream.wait_stream(outside)
        with torch.cuda.stream(self._stream):
            found = self._complete(question, streams, run_model)
        outside.wait_stream(self._stream)
        return found

    def _complete(
        self,
        question: Question,
        streams: Streams,
        run_model: Callable[[Tensor], Tensor] | None,
    ) -> Tested | None:
        for kept, stream in zip(self._streams, streams, strict=True):
            kept.copy_(stream)
        self._middle[0].replay()
        changed, candidates = self._changed, self._candidates
        if question.outputs.shape != changed.outputs.shape:
            return None
        passes = (self.passes.forward, changed.outputs), (self.passes.differentiable, self._outputs)
        agree = [
            (relative_errors(outputs, question.outputs) <= forward.tolerance).all()
            for forward, outputs in passes
        ]
        verdict = [*agree, self._begin[1], self._middle[1], ~is_open(changed, candidates).any()]
        *are_reliable, is_settled = torch.stack(verdict).tolist()
        assert self._weights is not None
        weights = self._weights.read()
        self.is_stale = not all(forward.is_current(weights) for forward, _ in passes)
        if self.is_stale or not all(are_reliable):
            return None
        self._are_finite.clear()
        self._model_agrees.clear()
        if not is_settled:
            try_others(changed, candidates)
        self._end[0].replay()
        if run_model is not None and self._model is not None:
            run_model = partial(self._run_recorded_model, question)
        found = tested(question, changed, candidates, self._finished, run_model)
        # The next question overwrites what the graphs return.
        kept = {name: value.clone() for name, value in vars(found).items() if _is_tensor(value)}
        are_finite = torch.stack([*self._are_finite, self._end[1]]).all()
        agrees = torch.stack([*self._model_agrees, torch.ones_like(are_finite)]).all()
        is_reliable, agrees = torch.stack([are_finite, agrees]).tolist()
        self.is_stale = not agrees
        return replace(found, **kept) if is_reliable and agrees else None

    def _run_recorded_model(self, question: Question, images: Tensor) -> Tensor:
        """Replay the model itself, also at x, where its outputs are known."""
        assert self._model is not None
        rows = len(question.inputs)
        outputs = self._model(torch.cat([images, question.inputs]))
        errors = relative_errors(outputs[-rows:], question.outputs)
        self._model_agrees.append((errors <= TOLERANCE[question.inputs.dtype]).all())
        return outputs[:-rows]

    def _find_evidence(self) -> Evidence:
        self._changed.look()
        self._outputs = self.passes.differentiable.run_unchecked(self._changed.inputs)
        gradients = self.passes.differentiable.gradients_unchecked
        return find_evidence(self._changed, self._plan, gradients, rough=self._changed)

    def _propose(self) -> Candidates:
        return propose(self._changed, self._plan, self._evidence, self._streams)

    def _finish(self) -> Finished:
        return finish(self._changed, self._plan, self._evidence, self._candidates, self._streams)

    def _warm_up(self) -> None:
        """Run everything once, so that libraries choose their kernels before they are recorded."""
        self._evidence = self._find_evidence()
        self._candidates = self._propose()
        self._finish()

    def _record(
        self, action: Callable[[], Result]
    ) -> tuple[tuple[torch.cuda.CUDAGraph, Tensor], Result]:
        """Return a graph of `action`, whether its outputs are finite, and its result."""
        graph = torch.cuda.CUDAGraph()
        self._are_finite.clear()
        # Thread-local, because other threads may use CUDA meanwhile.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            result = action()
            are_finite = torch.stack(self._are_finite).all()
        return (graph, are_finite), result


def _noting_finite(forward: ForwardPass, are_finite: list[Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a function that runs images, and appends whether all outputs are finite.

    It does not refer to the recording, whose memory is freed as soon as nothing else does.
    """

    def run(images: Tensor) -> Tensor:
        outputs = forward.run_unchecked(images)
        are_finite.append(torch.isfinite(outputs).all())
        return outputs

    return run


TestKey = tuple[Any, ...]
"""What a recorded test serves: the form of the inputs and outputs, and the settings of the test."""


class ColourTester:
    """Tests the colours of questions, one after the other.

    On a GPU, the first question of a kind is tested step by step, the second one is recorded, and
    later ones are replayed. Only the latest recording is kept. Copies start without one.
    """

    def __init__(self) -> None:
        self._forward_passes = ForwardPasses()
        self._rough_passes = ForwardPasses(ROUGH_DTYPES)
        self._differentiable_passes = ForwardPasses(is_differentiable=True)
        self._previous: tuple[TestKey, Passes] | None = None
        self._recorded: tuple[TestKey, RecordedTest] | None = None
        self._unrecordable: set[TestKey] = set()

    @property
    def is_recorded(self) -> bool:
        """Whether there is a recording to replay."""
        return self._recorded is not None

    def forget(self) -> None:
        """Release the recording's memory."""
        self._recorded = self._previous = None

    @full_precision()
    @torch.inference_mode(False)
    @torch.no_grad()
    def start(
        self, question: Question, test: WindowTest, removals: tuple[OneRemoval, ...]
    ) -> RecordedTest | None:
        """Begin a test, if one of the same kind has been recorded or can be now.

        It is completed by `test`; what the GPU does until then runs beside it.
        """
        key = _key(question, test, removals)
        if key is None:
            return None
        recorded = self._recording(key, question, test, removals)
        if recorded is None:
            return None
        with suppress(DMBPError):  # a class that the model lacks is reported by `test`
            return recorded if recorded.start(question) else None
        return None

    @full_precision()
    @torch.inference_mode(False)
    def test(
        self,
        question: Question,
        streams: Streams,
        test: WindowTest,
        removals: tuple[OneRemoval, ...],
        *,
        started: RecordedTest | None = None,
        with_outputs: bool = True,
        on_step: Callable[[], None] | None = None,
    ) -> Tested:
        """Ask the model about the colours that the streams propose.

        Args:
            question: The images and targets.
            streams: The attributions of both streams.
            test: The settings.
            removals: How windows are removed; none takes what suits the inputs.
            started: What `start` returned for this question.
            with_outputs: Whether the model itself is run without the map's colours.
            on_step: Called `removal.PROGRESS_STEPS` times.
        """
        if started is not None:
            run_model = question.runner.outputs if with_outputs else None
            with torch.no_grad():
                found = started.complete(question, streams, run_model)
            if found is not None:
                for _ in range(PROGRESS_STEPS if on_step is not None else 0):
                    on_step()  # pyright: ignore[reportOptionalCall]
                return found
            if started.is_stale:
                self.forget()
        run, passes = self._fastest_run(question)
        key = _key(question, test, removals)
        self._previous = None if key is None or passes is None else (key, passes)
        # Rows whose targets look at parts of different sizes are tested with different windows.
        rows_of: dict[tuple[float, ...] | None, list[int]] = {}
        for row, window in enumerate(_windows(question, test)):
            rows_of.setdefault(window, []).append(row)
        found_by_window: list[Tested] = []
        for window, rows in rows_of.items():
            positive, negative = streams
            found = confirm_colours(
                question.pick(rows),
                (positive[rows], negative[rows]),
                test,
                window=window,
                removals=tuple(_of_rows(k, rows, len(question.rows)) for k in removals),
                with_outputs=with_outputs,
                on_step=None if found_by_window else on_step,
                run=run,
            )
            found_by_window.append(found)
        return join_rows(found_by_window, list(rows_of.values()))

    def forward_pass(
        self, captured: CapturedGraph, inputs: Tensor, outputs: Tensor
    ) -> ForwardPass | None:
        """Return a faster way to run the model on many images, if there is one."""
        return self._forward_passes.find(captured, inputs, outputs)

    def _recording(
        self,
        key: TestKey,
        question: Question,
        test: WindowTest,
        removals: tuple[OneRemoval, ...],
    ) -> RecordedTest | None:
        captured = question.linearizer.captured_graph(question.inputs)
        if self._recorded is not None and self._recorded[0] == key:
            recorded = self._recorded[1]
            return recorded if recorded.passes.captured is captured else None
        previous = self._previous
        if previous is None or previous[0] != key or previous[1].captured is not captured:
            return None
        if key in self._unrecordable or not previous[1].are_current():
            return None
        self.forget()
        try:
            self._recorded = key, RecordedTest(question, test, removals, previous[1])
            return self._recorded[1]
        except (
            RuntimeError,
            RecordingTooLarge,
        ):  # RuntimeError: an operation that waits for the GPU
            self._unrecordable.add(key)
        free_memory()  # of the recording that failed
        return None

    def _fastest_run(self, question: Question) -> tuple[Run, Passes | None]:
        """Return the fastest ways to run the model on any number of images."""
        runner, inputs, outputs = question.runner, question.inputs, question.outputs
        captured = question.linearizer.captured_graph(inputs)
        run = Run(runner.outputs, partial(input_gradients, runner.run))
        if captured is None:
            return run, None
        if captured.batch is not None:
            padded = partial(run_padded, captured.batch)
            gradients = partial(input_gradients, partial(padded, runner.run))
            return Run(partial(padded, runner.outputs), gradients), None
        state = fingerprint(captured.constants.values())
        forward = self._forward_passes.find(captured, inputs, outputs, state=state)
        if forward is None:
            return run, None
        run = replace(run, outputs=forward, dtype=forward.dtype)
        differentiable = self._differentiable_passes.find(captured, inputs, outputs, state=state)
        passes = None
        if differentiable is not None:
            run = replace(run, gradients=differentiable.gradients)
            passes = Passes(captured, forward, differentiable)
        if inputs.device.type == "cpu":
            rough = self._rough_passes.find(captured, inputs, outputs, state=state)
            if rough is not None:
                run = replace(run, rough_outputs=rough, rough_dtype=rough.dtype)
        return run, passes

    def __deepcopy__(self, memo: Any) -> ColourTester:
        return ColourTester()

    def __reduce__(self) -> Any:
        return ColourTester, ()


def _key(question: Question, test: WindowTest, removals: tuple[OneRemoval, ...]) -> TestKey | None:
    """Return the kind of a question, or None if its test cannot be recorded."""
    inputs, rows = question.inputs, question.rows
    has_one_target = len(set(rows.image)) == len(rows)
    are_named = all(isinstance(k, str) for k in removals)
    is_small = inputs.is_cuda and len(rows) <= MOST_ROWS
    can_be = is_small and has_one_target and are_named and rows.is_linear
    if not can_be or any(window is not None for window in _windows(question, test)):
        return None
    if question.runner.has_extra_inputs:
        return None
    settings = (test, removals, question.seed, question.batch_size)
    return (tuple(inputs.shape), inputs.dtype, inputs.device, len(rows.shape), *settings)


def _windows(question: Question, test: WindowTest) -> list[tuple[float, ...] | None]:
    """Return the side of the windows that each row asks for, if the settings leave it open."""
    if test.window or test.stride:
        return [None] * len(question.rows)
    size = pixel_size(question.inputs)
    return [window_for(label, size) for label in question.rows.labels]


def _of_rows(removal: OneRemoval, rows: Sequence[int], count: int) -> OneRemoval:
    """Return the part of a removal that belongs to some of `count` rows."""
    if not isinstance(removal, Tensor) or removal.dim() < 2 or len(removal) != count:
        return removal
    return removal[list(rows)]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
