"""Explains a model again and again; on a GPU from a recording, once a kind of question returns."""

import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dmbp.decompose.decomposition import Decomposition
from dmbp.decompose.learn import TOO_NARROW, OutOfRange, learn_once, with_bfloat16
from dmbp.decompose.recording import Recording
from dmbp.decompose.settings import OBJECTIVES, Settings
from dmbp.engine import TYPICAL_BYTES, OnIteration, has_gpu_engine, plan_for, prepare
from dmbp.errors import InexactCapture
from dmbp.linear import Linearizer, LinearNetwork, TargetRows
from dmbp.precision import deterministic_kernels, full_precision

SHARE = 0.25
"""Of a GPU's memory, the most that a recording is estimated to keep between calls."""

RecordingKey = tuple[Any, ...]
"""What a recording is good for: the form of the inputs, and the settings of learning."""


class Decomposer:
    """Decomposes the score of rows, one batch after the other.

    Where float16's range was too small once, bfloat16 is used from then on.

    The first batch of a kind is explained step by step, with the second a recording is made. The
    last one made is kept. Threads take turns.
    """

    def __init__(self) -> None:
        self._previous: RecordingKey | None = None
        self._kind: RecordingKey | None = None
        self._recording: Recording | None = None
        self._refused: set[RecordingKey] = set()
        self._is_wide = False

    def __deepcopy__(self, memo: Any) -> "Decomposer":
        return Decomposer()

    def __reduce__(self) -> Any:
        return Decomposer, ()

    @full_precision()
    @deterministic_kernels()
    @torch.inference_mode(False)
    def decompose(
        self,
        linearizer: Linearizer,
        inputs: Tensor,
        *,
        outputs: Callable[[], Tensor],
        rows: TargetRows,
        settings: Settings,
        on_iteration: OnIteration = None,
    ) -> Decomposition:
        """Split the score of every row, from each row's image and the model's outputs there.

        From a recording, the model is asked for them while masks are learned.
        """
        question: Any = {"inputs": inputs, "outputs": outputs, "rows": rows}
        chosen = with_bfloat16(settings) if self._is_wide else settings
        with suppress(OutOfRange):
            found = self._decompose(linearizer, question, chosen, on_iteration=on_iteration)
            return replace(found, settings=settings)
        if settings.precision != "auto":
            warnings.warn(TOO_NARROW, stacklevel=2)
        self._is_wide = True
        self.forget()
        return replace(
            self._decompose(linearizer, question, with_bfloat16(settings)), settings=settings
        )

    def _decompose(
        self,
        linearizer: Linearizer,
        question: Any,
        settings: Settings,
        *,
        on_iteration: OnIteration = None,
    ) -> Decomposition:
        inputs: Tensor = question["inputs"]
        question = {**question, "settings": settings}
        kind = _kind(inputs, settings)
        # A recording keeps no place for other inputs.
        captured = None if linearizer.holds else linearizer.captured(inputs)
        if captured is not None:
            try:
                self._record(kind, lambda: Recording(linearizer, captured, **question))
                if self._recording is not None and self._kind == kind:
                    return self._recording.decompose(**question, on_iteration=on_iteration)
            except InexactCapture:
                self.forget()  # the model has changed since
        prepare(inputs, loss=OBJECTIVES[settings.objective], precision=settings.precision)
        outputs: Tensor = question["outputs"]()
        rows: TargetRows = question["rows"].among(outputs.shape[1])
        net = linearizer.freeze(inputs, outputs, rows)
        changes = linearizer.approximates or linearizer.holds
        can_return = not changes and _is_recordable(net)
        self._previous = kind if can_return else None
        return learn_once(net, settings, on_iteration=on_iteration)

    def forget(self) -> None:
        """Give the recording's memory back."""
        self._recording = self._kind = self._previous = None

    def _record(self, kind: RecordingKey, record: Callable[[], Recording]) -> None:
        """Make a recording if this kind is asked about twice in a row."""
        if kind in (self._kind, *self._refused) or kind != self._previous:
            return
        self.forget()
        try:
            self._recording, self._kind = record(), kind
        except RuntimeError:  # an operation that asks the CPU, or no memory for it
            self._refused.add(kind)


def _kind(inputs: Tensor, settings: Settings) -> RecordingKey:
    form = (tuple(inputs.shape), inputs.dtype, inputs.device)
    return (*form, settings.objective, settings.learning_rate, settings.precision)


def _is_recordable(net: LinearNetwork) -> bool:
    if not (net.inputs.is_cuda and has_gpu_engine(plan_for(net))):
        return False
    elements = sum(math.prod(site.shape) for site in net.sites)
    total = torch.cuda.get_device_properties(net.inputs.device).total_memory
    return elements * TYPICAL_BYTES <= SHARE * total
