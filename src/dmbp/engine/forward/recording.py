"""Records functions of images as CUDA graphs, one for each batch size that comes again.

A small batch takes the GPU less time than Python needs to start its kernels. A recording starts
them all at once.
"""

from typing import Any

import torch
from torch import Tensor

from dmbp.linear.rules.base import Function

MAX_BATCH = 64
"""Larger batches keep the GPU busy without a recording, which would occupy their memory."""

MAX_RECORDINGS = 4
"""How many recordings are kept, because each holds the memory of its activations."""


class Recorder:
    """Runs a function of images, and records it the second time that a shape is met.

    Further arguments are tensors whose shapes follow from the images'.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self._met: set[torch.Size] = set()
        self._recordings: dict[torch.Size, RecordedBatch] = {}
        self._can_record = True

    def __call__(self, images: Tensor, *others: Tensor) -> Any:
        """Return the function's result; replay a recording if there is one."""
        shape = images.shape
        if shape not in self._recordings and self._is_worth_recording(shape):
            self._record(images, *others)
        self._met.add(shape)
        run = self._recordings.get(shape, self._function)
        return run(images, *others)

    def _is_worth_recording(self, shape: torch.Size) -> bool:
        has_room = len(self._recordings) < MAX_RECORDINGS and shape[0] <= MAX_BATCH
        return self._can_record and has_room and shape in self._met

    def _record(self, images: Tensor, *others: Tensor) -> None:
        """Record the function, unless one of its operations cannot be recorded."""
        try:
            self._recordings[images.shape] = RecordedBatch(self._function, images, *others)
        except RuntimeError:
            self._can_record = False


class RecordedBatch:
    """A CUDA graph of a function of images of one shape."""

    def __init__(self, function: Function, *arguments: Tensor) -> None:
        with torch.cuda.device(arguments[0].device):
            self._record(function, arguments)

    def _record(self, function: Function, arguments: tuple[Tensor, ...]) -> None:
        self._arguments = [argument.detach().clone() for argument in arguments]
        stream, outside = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(outside)
        with torch.cuda.stream(stream):
            function(*self._arguments)  # cuDNN and cuBLAS select their kernels before the recording
        outside.wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # Thread-local, because other threads may use CUDA meanwhile.
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            result: Tensor | None = function(*self._arguments)
        if result is None:
            raise RuntimeError("there is nothing to record")
        self._result = result

    def __call__(self, *arguments: Tensor) -> Tensor:
        """Replay the recording on other images."""
        for kept, argument in zip(self._arguments, arguments, strict=True):
            kept.copy_(argument)
        self._graph.replay()
        return self._result.clone()
