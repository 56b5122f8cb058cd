"""Explains one question after the other; on a GPU, repeated kinds of question are recorded.

Two things are remembered between calls: a recording of the last kind of question (inputs of one
shape, explained with one set of settings), and whether the model's numbers need bfloat16's range.
"""

import math
import warnings
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from dmbp.decompose.decomposition import Decomposition
from dmbp.decompose.learn import OutOfRange, decompose_network
from dmbp.decompose.recording import Recording
from dmbp.decompose.settings import OBJECTIVES, Settings
from dmbp.engine import TYPICAL_BYTES_PER_ELEMENT, OnIteration, has_gpu_engine, plan_for, prepare
from dmbp.errors import InexactCapture
from dmbp.linear import LinearNetwork, Question
from dmbp.precision import deterministic_kernels, full_precision

SHARE = 0.25
"""The largest share of a GPU's memory that a recording may be estimated to keep between calls."""

TOO_NARROW = (
    "some activations or gradients of this model are beyond float16's range: its masks are learned "
    'in bfloat16; precision="bfloat16" does so from the start'
)

RecordingKey = tuple[Any, ...]
"""What a recording serves: the form of the inputs, and the settings that learning depends on."""


class Decomposer:
    """Decomposes the scores of questions, one after the other.

    The first question of a kind is explained step by step, the second one is recorded, and later
    ones are replayed. Only the latest recording is kept. Once float16's range has been too small,
    bfloat16 is used. Copies start without a recording.
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
        self, question: Question, settings: Settings, *, on_iteration: OnIteration = None
    ) -> Decomposition:
        """Split the score of every row, in bfloat16 if float16's range is too small."""
        current = with_bfloat16(settings) if self._uses_bfloat16 else settings
        with suppress(OutOfRange):
            found = self._decompose(question, current, on_iteration=on_iteration)
            return replace(found, settings=settings)
        if settings.precision != "auto":
            warnings.warn(TOO_NARROW, stacklevel=2)
        self._uses_bfloat16 = True
        self.forget()
        return replace(self._decompose(question, with_bfloat16(settings)), settings=settings)

    def forget(self) -> None:
        """Release the recording's memory."""
        self._recorded = self._previous = None

    def _decompose(
        self, question: Question, settings: Settings, *, on_iteration: OnIteration = None
    ) -> Decomposition:
        key = _recording_key(question, settings)
        recording = self._recording(key, question, settings)
        if recording is not None:
            try:
                return recording.decompose(question, settings, on_iteration=on_iteration)
            except InexactCapture:
                self.forget()  # the model has changed since it was recorded
        loss = OBJECTIVES[settings.objective]
        prepare(question.inputs, loss=loss, precision=settings.precision)
        net = question.network()
        is_constant = not (question.linearizer.is_approximate or question.runner.has_extra_inputs)
        self._previous = key if is_constant and _is_recordable(net) else None
        return decompose_network(net, settings, on_iteration=on_iteration)

    def _recording(
        self, key: RecordingKey, question: Question, settings: Settings
    ) -> Recording | None:
        """Return the recording for this kind of question; make one the second time it is asked."""
        # A recording has no place for extra inputs.
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
        except InexactCapture:
            return None
        except RuntimeError:  # an operation that synchronises with the CPU, or too little memory
            self._unrecordable.add(key)
            return None
        return self._recorded[1]

    def __deepcopy__(self, memo: Any) -> "Decomposer":
        return Decomposer()

    def __reduce__(self) -> Any:
        return Decomposer, ()


def with_bfloat16(settings: Settings) -> Settings:
    """Replace float16 by bfloat16 in the settings."""
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
    return elements * TYPICAL_BYTES_PER_ELEMENT <= SHARE * total
