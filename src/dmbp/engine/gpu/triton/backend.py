"""The Triton back end: what `engine/select.py` hands to the plan and to the GPU engine."""

from collections.abc import Callable, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from dmbp.engine.gpu.merging import Merged
from dmbp.engine.gpu.program import GpuInstruction, GpuSite, Scores
from dmbp.engine.gpu.state import LearningState
from dmbp.engine.gpu.triton.gates import past, started
from dmbp.engine.gpu.triton.launch import rehearsing
from dmbp.engine.gpu.triton.pooled_site import PooledTritonSite
from dmbp.engine.gpu.triton.scores import TritonScores
from dmbp.engine.gpu.triton.site import TritonSite
from dmbp.engine.gpu.triton.split_convolution import split
from dmbp.engine.gpu.triton.windows import (
    GatheredTranspose,
    is_for_gathering,
    unpooled,
    winners_of,
)
from dmbp.engine.gpu.triton.winograd import Winograd, is_for_winograd
from dmbp.engine.plan.kernels import (
    ConvolutionSettings,
    Kernels,
    Pooling,
    RunConvolution,
    Unpool,
)
from dmbp.engine.plan.streams import channels_last
from dmbp.engine.plan.tail import Tail

_compiled: set[Any] = set()
"""The programs whose kernels have been compiled in this process."""


class TritonBackend:
    """Sites, scores and split convolutions of the GPU engine in Triton."""

    merges_pooling = True

    def site(self, merged: Merged, logits: Tensor, learning: LearningState) -> GpuSite:
        """Return a site, with the max-pooling after it where it was merged."""
        kind = TritonSite if merged.pooling is None else PooledTritonSite
        return kind(merged, logits, learning)

    def scores(self, tail: Tail, output: Tensor, learning: LearningState) -> Scores:
        """Return the kernels for terms and seeds."""
        return TritonScores(tail, output, learning)

    def split_convolutions(
        self,
        program: Sequence[GpuInstruction],
        sites: Sequence[Merged],
        *,
        ends: Set[int],
        learning: LearningState,
    ) -> list[GpuInstruction]:
        """Split convolutions next to `sites` where that is faster."""
        return split(program, sites, ends=ends, learning=learning)

    def compile(self, key: Any, run: Callable[[], None]) -> None:
        """Compile what `run` launches, several kernels at a time."""
        if key not in _compiled:
            with rehearsing():
                run()
            _compiled.add(key)


class TritonKernels(Kernels):
    """Faster paths for tensors in single precision on a GPU; plain PyTorch for all others.

    A gate's gradient is one kernel: a dozen plain operations would take longer than the convolution
    behind it.
    """

    def start_at_gate(self, gradient: Tensor, slope: Tensor, size: float) -> tuple[Tensor, Tensor]:
        """Choose a gate's initial logits and pass both gradients, in one kernel."""
        if gradient.dtype != torch.float32:
            return super().start_at_gate(gradient, slope, size)
        return started(gradient, slope, size)

    def pass_gate(self, gradient: Tensor, slope: Tensor, logits: Tensor | None) -> Tensor:
        """Pass both gradients through a gate and its masks, in one kernel."""
        if logits is None or gradient.dtype != torch.float32:
            return super().pass_gate(gradient, slope, logits)
        return past(gradient, logits, slope, None)

    def convolution(
        self, weight: Tensor, bias: Tensor | None, settings: ConvolutionSettings
    ) -> RunConvolution | None:
        """Return Winograd's method for 3 × 3 convolutions in single precision."""
        if not _is_single_precision(weight) or not is_for_winograd(weight, settings):
            return None
        convolution = Winograd(weight, bias, settings[1][0])

        def run(activation: Tensor, mask: Tensor | None) -> Tensor:
            result = convolution(channels_last(activation))
            return result if mask is None else result.mul_(mask)

        return run

    def transposed_convolution(
        self, weight: Tensor, settings: ConvolutionSettings, input_size: tuple[int, ...]
    ) -> RunConvolution | None:
        """Return the transpose as a product whose columns are gathered, in single precision."""
        if not _is_single_precision(weight) or not is_for_gathering(weight, settings):
            return None
        weight = weight.contiguous(memory_format=torch.channels_last)
        transpose = GatheredTranspose(weight, settings, input_size)
        return lambda gradient, _: transpose(channels_last(gradient))

    def unpooling(self, pooling: Pooling, input_size: tuple[int, ...]) -> Unpool | None:
        """Return the transpose of a max-pooling as one kernel."""
        winners = winners_of(pooling, input_size[1])
        return lambda gradient: unpooled(gradient, winners, pooling, input_size)


def _is_single_precision(weight: Tensor) -> bool:
    return weight.dtype == torch.float32 and not torch.backends.cudnn.allow_tf32
