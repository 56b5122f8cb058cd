"""Explains questions one after the other; on a GPU, repeated kinds of question are recorded.

Before the first iteration and after the last, an explanation consists of about a thousand small
operations, which a GPU executes faster than Python launches them. A `Recording` holds freezing at
x, the initial masks and the read-out as CUDA graphs (an engine records its own iterations). For
another question of the same kind, pixels and target weights are copied in and the graphs are
replayed. The graphs read the model's own parameters, so these may be changed in place. Every replay
is compared with the model's output; the model runs on a second stream while masks are learned.

A `Decomposer` remembers two things between calls: the recording of the last kind of question, and
whether the model's numbers need bfloat16's range.
"""

import gc
import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from dmbp.decompose.decomposition import Decomposition
from dmbp.decompose.learn import OutOfRange, check_finite, collect, decompose_network, make_engine
from dmbp.decompose.settings import OBJECTIVES, Settings
from dmbp.engine import (
    TYPICAL_BYTES_PER_ELEMENT,
    Engine,
    OnIteration,
    Readout,
    Terms,
    has_gpu_engine,
    plan_for,
    prepare,
)
from dmbp.errors import InexactCapture
from dmbp.linear import LinearNetwork, Question
from dmbp.linear.capture.export import CapturedGraph
from dmbp.linear.freeze.freeze import check_exactness
from dmbp.precision import deterministic_kernels, full_precision

Result = TypeVar("Result")


class Recording:
    """An explanation as CUDA graphs, for questions of the same kind as `question`.

    They have as many rows, images of the same shape, and the same settings for learning.
    """

    def __init__(self, question: Question, captured: CapturedGraph, settings: Settings) -> None:
        self._captured = captured
        self._inputs = question.inputs.clone()
        self._model_stream = torch.cuda.Stream()
        # Where the GPU does something else besides, an explanation's kernels go first.
        self._stream = torch.cuda.Stream(priority=-1)
        # The model runs on the second stream from the start, because libraries allocate memory when
        # a stream is first used.
        outputs = self._outputs_on_model_stream(question, _record_event())
        weights, constant = question.rows.tangent(outputs)
        self._tangent = (weights.clone(), constant.clone())
        self._pool = torch.cuda.graph_pool_handle()
        linearizer, rows = question.linearizer, question.rows

        def begin() -> tuple[LinearNetwork, Engine]:
            frozen = linearizer.freeze_unchecked(captured, self._inputs)
            net = LinearNetwork(frozen, self._inputs, rows, tangent=self._tangent)
            return net, make_engine(plan_for(net), settings)

        self._begin, (self._net, self._engine) = self._record(begin)
        self._end: torch.cuda.CUDAGraph | None = None
        self._recorded_readout: Readout | None = None

    def decompose(
        self,
        question: Question,
        settings: Settings,
        *,
        on_iteration: OnIteration = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Decomposition:
        """Return the decomposition of another question of the same kind.

        `meanwhile` is called before the CPU waits for the GPU.

        Raises:
            InexactCapture: If the model has changed since it was recorded.
        """
        inputs, rows = question.inputs, question.rows
        weights = self._tangent[0]
        if weights.shape[1] != rows.classes:
            raise InexactCapture("the model's classes have changed since it was recorded")
        inputs_ready = _record_event()
        self._inputs.copy_(inputs)
        at = torch.zeros_like(weights) if rows.is_linear else question.outputs
        for kept, part in zip(self._tangent, rows.tangent(at), strict=True):
            kept.copy_(part)
        self._begin.replay()
        past = self._engine.learn(settings.iterations, on_iteration)
        readout = self._readout()
        outputs = self._outputs_on_model_stream(question, inputs_ready)
        net = LinearNetwork(self._net.frozen, inputs, rows, tangent=self._tangent)
        decomposition = collect(net, settings, past, readout)
        if meanwhile is not None:
            meanwhile()
        exactness = check_exactness(self._captured, self._net.frozen, inputs, outputs)
        return replace(check_finite(decomposition, self._engine, past), exactness=exactness)

    def _outputs_on_model_stream(self, question: Question, after: torch.cuda.Event) -> Tensor:
        """Return the model's outputs, computed beside the iterations, `after` an event."""
        self._model_stream.wait_event(after)
        with torch.cuda.stream(self._model_stream):
            outputs = question.outputs
        torch.cuda.current_stream().wait_stream(self._model_stream)
        outputs.record_stream(torch.cuda.current_stream())
        return outputs

    def _readout(self) -> Readout:
        """Return copies of the read-out, since the next question overwrites it."""
        if self._end is None:
            self._end, self._recorded_readout = self._record(self._engine.readout)
        self._end.replay()
        assert self._recorded_readout is not None
        terms = self._recorded_readout.terms
        return Readout(
            Terms(terms.output.clone(), terms.positive.clone(), terms.negative.clone()),
            self._recorded_readout.positive_map.clone(),
            self._recorded_readout.negative_map.clone(),
        )

    def _record(self, action: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            result = action()
        return graph, result


def _record_event() -> torch.cuda.Event:
    """Record an event after all work issued to the GPU so far."""
    event = torch.cuda.Event()
    event.record()
    return event


MAX_MEMORY_SHARE = 0.25
"""The largest share of a GPU's memory that a recording may be estimated to keep between calls."""


def has_room_for_recording(before: int) -> bool:
    """Return whether a recording may keep what was needed at most since `before` was allocated.

    A recording that runs out of memory half-way would not give back all that it has taken. The peak
    may be that of something earlier; to find out, PyTorch's own would have to be reset.
    """
    free, total = torch.cuda.mem_get_info()
    free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    peak = torch.cuda.max_memory_allocated() - before
    return peak <= min(free / 2, MAX_MEMORY_SHARE * total)


def free_memory() -> None:
    """Give back memory that nothing uses, also that of recordings that failed."""
    gc.collect()
    torch.cuda.empty_cache()


TOO_NARROW = (
    "some activations or gradients of this model are beyond float16's range: its masks are learned "
    'in bfloat16; precision="bfloat16" does so from the start'
)

RecordingKey = tuple[Any, ...]
"""What a recording serves: the form of the inputs, and the settings that learning depends on."""


class Decomposer:
    """Decomposes the scores of questions, one after the other.

    On a GPU, the first question of a kind is explained step by step, the second one is recorded,
    and later ones are replayed. Only the latest recording is kept. Once float16's range has been
    too small, bfloat16 is used. Copies start without a recording.
    """

    def __init__(self) -> None:
        self._previous: RecordingKey | None = None
        self._recorded: tuple[RecordingKey, Recording] | None = None
        self._unrecordable: set[RecordingKey] = set()
        self._uses_bfloat16 = False

    @property
    def is_recorded(self) -> bool:
        """Whether there is a recording to replay."""
        return self._recorded is not None

    @full_precision()
    @deterministic_kernels()
    @torch.inference_mode(False)
    def decompose(
        self,
        question: Question,
        settings: Settings,
        *,
        on_iteration: OnIteration = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Decomposition:
        """Split the score of every row; use bfloat16 if float16's range is too small.

        `meanwhile` is called while a GPU replays a recording, if it does.
        """
        current = with_bfloat16(settings) if self._uses_bfloat16 else settings
        with suppress(OutOfRange):
            decomposition = self._decompose(
                question, current, on_iteration=on_iteration, meanwhile=meanwhile
            )
            return replace(decomposition, settings=settings)
        if settings.precision != "auto":
            warnings.warn(TOO_NARROW, stacklevel=2)
        self._uses_bfloat16 = True
        self.forget()
        return replace(self._decompose(question, with_bfloat16(settings)), settings=settings)

    def forget(self) -> None:
        """Release the recording's memory."""
        self._recorded = self._previous = None

    def _decompose(
        self,
        question: Question,
        settings: Settings,
        *,
        on_iteration: OnIteration = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Decomposition:
        key = _recording_key(question, settings)
        recording = self._recording(key, question, settings)
        if recording is not None:
            try:
                return recording.decompose(
                    question, settings, on_iteration=on_iteration, meanwhile=meanwhile
                )
            except InexactCapture:
                self.forget()  # the model has changed since it was recorded
        loss = OBJECTIVES[settings.objective]
        prepare(question.inputs, loss=loss, precision=settings.precision)
        before = torch.cuda.memory_allocated() if question.inputs.is_cuda else 0
        net = question.network()
        is_constant = not (question.linearizer.is_approximate or question.runner.has_extra_inputs)
        can_be_recorded = is_constant and _is_recordable(net)
        decomposition = decompose_network(net, settings, on_iteration=on_iteration)
        self._previous = key if can_be_recorded and has_room_for_recording(before) else None
        return decomposition

    def _recording(
        self, key: RecordingKey, question: Question, settings: Settings
    ) -> Recording | None:
        """Return the recording for this kind of question; make one for the second question."""
        # A recording cannot replace extra inputs.
        has_extra_inputs = question.runner.has_extra_inputs
        captured = None if has_extra_inputs else question.linearizer.captured_graph(question.inputs)
        if captured is None:
            return None
        if self._recorded is not None and self._recorded[0] == key:
            return self._recorded[1]
        if key in self._unrecordable or key != self._previous:
            return None
        self.forget()
        try:
            self._recorded = key, Recording(question, captured, settings)
            return self._recorded[1]
        except InexactCapture:
            return None
        except RuntimeError:  # an operation that synchronises with the CPU, or too little memory
            self._unrecordable.add(key)
        free_memory()  # of the recording that failed
        return None

    def __deepcopy__(self, memo: Any) -> "Decomposer":
        return Decomposer()

    def __reduce__(self) -> Any:
        return Decomposer, ()


def with_bfloat16(settings: Settings) -> Settings:
    """Return the settings with bfloat16 in place of float16."""
    is_narrow = settings.precision in ("auto", "float16")
    return replace(settings, precision="bfloat16") if is_narrow else settings


def _recording_key(question: Question, settings: Settings) -> RecordingKey:
    inputs = question.inputs
    form = (tuple(inputs.shape), inputs.dtype, inputs.device)
    return (*form, settings.objective, settings.learning_rate, settings.precision)


def _is_recordable(net: LinearNetwork) -> bool:
    if not (net.inputs.is_cuda and has_gpu_engine(plan_for(net))):
        return False
    elements = sum(math.prod(site.shape) for site in net.sites)
    total = torch.cuda.get_device_properties(net.inputs.device).total_memory
    return elements * TYPICAL_BYTES_PER_ELEMENT <= MAX_MEMORY_SHARE * total
