"""The Triton back end, which `engine/select.py` passes to the plan and to the GPU engine.

`TritonBackend` makes the parts of the program that runs in every iteration; `TritonKernels` has
faster float32 kernels for the passes before and after the iterations.
"""

from collections.abc import Callable, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from dmbp.engine.gpu.fusion import FusedGate
from dmbp.engine.gpu.learning_state import LearningState
from dmbp.engine.gpu.program import GpuInstruction, GpuSite, LossHead
from dmbp.engine.gpu.triton.gate_gradients import pass_gate, start_at_gate
from dmbp.engine.gpu.triton.launch import compile_only
from dmbp.engine.gpu.triton.loss_head import TritonLossHead
from dmbp.engine.gpu.triton.pooled_site import PooledTritonSite
from dmbp.engine.gpu.triton.product import multiply
from dmbp.engine.gpu.triton.site import TritonSite
from dmbp.engine.gpu.triton.split_convolution import split_convolutions
from dmbp.engine.gpu.triton.transposes import (
    GatheredTranspose,
    can_gather_transpose,
    unpool,
    window_winners,
)
from dmbp.engine.gpu.triton.winograd import WinogradConvolution, should_use_winograd
from dmbp.engine.plan.kernels import (
    ConvolutionSettings,
    Kernels,
    Pooling,
    Product,
    RunConvolution,
    Unpool,
)
from dmbp.engine.plan.streams import channels_last
from dmbp.engine.plan.tail import Tail

_compiled: set[Any] = set()
"""The keys of the programs whose kernels have been compiled in this process."""


class TritonBackend:
    """Makes sites, the loss head and split convolutions in Triton."""

    fuses_pooling = True

    def site(self, fused: FusedGate, logits: Tensor, learning: LearningState) -> GpuSite:
        """Return a site, which includes the max-pooling after it if that is fused."""
        kind = TritonSite if fused.pooling is None else PooledTritonSite
        return kind(fused, logits, learning)

    def loss_head(self, tail: Tail, output: Tensor, learning: LearningState) -> LossHead:
        """Return the loss head, which computes terms and seeds after the forward pass."""
        return TritonLossHead(tail, output, learning)

    def split_convolutions(
        self,
        program: Sequence[GpuInstruction],
        sites: Sequence[FusedGate],
        *,
        ends: Set[int],
        learning: LearningState,
    ) -> list[GpuInstruction]:
        """Return the program with convolutions next to `sites` split if that is faster."""
        return split_convolutions(program, sites, ends=ends, learning=learning)

    def compile(self, key: Any, run: Callable[[], None]) -> None:
        """Compile every kernel that `run` launches, several at a time, once per `key`."""
        if key not in _compiled:
            with compile_only():
                run()
            _compiled.add(key)


class TritonKernels(Kernels):
    """Faster kernels for float32 tensors on a GPU; plain PyTorch for all others.

    Gradients pass a gate in one kernel: a dozen PyTorch operations would take longer than the
    convolution next to the gate.
    """

    def start_at_gate(self, gradient: Tensor, slope: Tensor, size: float) -> tuple[Tensor, Tensor]:
        """Choose a gate's initial logits and pass both gradients through it, in one kernel."""
        if gradient.dtype != torch.float32:
            return super().start_at_gate(gradient, slope, size)
        return start_at_gate(gradient, slope, size)

    def pass_gate(self, gradient: Tensor, slope: Tensor, logits: Tensor | None) -> Tensor:
        """Pass both gradients through a gate and its masks, in one kernel."""
        if logits is None or gradient.dtype != torch.float32:
            return super().pass_gate(gradient, slope, logits)
        return pass_gate(gradient, logits, slope, None)

    def product(self, matrix: Tensor, bias: Tensor | None) -> Product:
        """Return a float32 matrix product on tensor cores where that is faster."""
        if not _is_single_precision(matrix):
            return super().product(matrix, bias)

        def run(vectors: Tensor) -> Tensor:
            return multiply(vectors.flatten(0, -2), matrix, bias).view(*vectors.shape[:-1], -1)

        return run

    def convolution(
        self, weight: Tensor, bias: Tensor | None, settings: ConvolutionSettings
    ) -> RunConvolution | None:
        """Return Winograd's method for a float32 convolution if it applies and is faster."""
        if not _is_single_precision(weight) or not should_use_winograd(weight, settings):
            return None
        convolution = WinogradConvolution(weight, bias, settings[1][0])

        def run(activation: Tensor, mask: Tensor | None) -> Tensor:
            result = convolution(channels_last(activation))
            return result if mask is None else result.mul_(mask)

        return run

    def transposed_convolution(
        self, weight: Tensor, settings: ConvolutionSettings, input_size: tuple[int, ...]
    ) -> RunConvolution | None:
        """Return a float32 transpose as a matrix product and a gather, if these apply."""
        if not _is_single_precision(weight) or not can_gather_transpose(weight, settings):
            return None
        weight = weight.contiguous(memory_format=torch.channels_last)
        transpose = GatheredTranspose(weight, settings, input_size)
        return lambda gradient, _: transpose(channels_last(gradient))

    def unpooling(self, pooling: Pooling, input_size: tuple[int, ...]) -> Unpool | None:
        """Return the transpose of a max-pooling as one kernel."""
        winners = window_winners(pooling, input_size[1])
        return lambda gradient: unpool(gradient, winners, pooling, input_size)


def _is_single_precision(weight: Tensor) -> bool:
    """Return whether products with a weight must be computed in float32, not TF32."""
    return weight.dtype == torch.float32 and not torch.backends.cudnn.allow_tf32
