"""The GPU engine's back end in plain PyTorch, for machines without Triton.

It computes what the Triton kernels compute, in many more passes over memory, and is the easiest
place to read what happens at a site. Masks and RMSProp's state are kept in float32, max-pooling is
a separate operation, and convolutions are not split.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from dmbp.engine.base import RMSPROP_DECAY, RMSPROP_EPSILON, Terms
from dmbp.engine.gpu.fusion import FusedGate
from dmbp.engine.gpu.half_precision import FLOAT16_MAX, GradientRange, updated_gradient_scales
from dmbp.engine.gpu.learning_state import (
    LearningState,
    SharedValue,
    StreamGradient,
    seeded_gradient,
)
from dmbp.engine.gpu.program import GpuInstruction
from dmbp.engine.plan.kernels import Kernels
from dmbp.engine.plan.streams import by_stream, channels_last
from dmbp.engine.plan.tail import Tail
from dmbp.linear.lines import ElementwiseLine


class TorchSite:
    """A gate with its masks, and the bias, sum or batch norm fused into it."""

    def __init__(self, fused: FusedGate, logits: Tensor, learning: LearningState) -> None:
        line = fused.gate.function
        assert isinstance(line, ElementwiseLine)
        self._fused = fused
        self._learning = learning
        self._logits = channels_last(logits.float().clone())
        self._squares = torch.zeros_like(self._logits)
        self._slope = line.slope.to(learning.dtype)
        offset = line.offset
        self._offset = None if offset is None else (offset * learning.unit).to(learning.dtype)
        self._out: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """The current mask logits."""
        return self._logits

    def pass_gradient(
        self, gradient: Tensor, slope: Tensor, gradient_range: GradientRange | None
    ) -> Tensor:
        """Pass both streams' gradients through the gate and its masks."""
        if gradient_range is not None:
            gradient_range.record(gradient)
        return Kernels().pass_gate(gradient, slope, self._logits)

    def forward(self, terms: Sequence[Tensor | SharedValue]) -> Tensor:
        """Return both streams of (slope ⊙ (scale · z₁ + z₂ + shift) + offset) ⊙ mask."""
        z, *rest = (t.stacked() if isinstance(t, SharedValue) else t for t in terms)
        if self._fused.scale is not None:
            z = z * self._by_channel(self._fused.scale, z)
        for other in rest:
            z = z + other
        if self._fused.shift is not None:
            z = z + self._by_channel(self._fused.shift * self._learning.unit, z)
        streams = by_stream(z) * self._slope
        streams = streams if self._offset is None else streams + self._offset
        self._out = (streams * self._masks()).flatten(0, 1)
        return self._out

    def backward(self, gradient: StreamGradient, *, needs_input_gradient: bool) -> Tensor | None:
        """Take an RMSProp step; return the gradient with respect to each term if needed."""
        assert self._out is not None
        parts = list(gradient.parts)
        if gradient.tail is not None:
            parts.append(seeded_gradient(gradient.tail, self._learning))
        g = sum(parts[1:], parts[0]).float()
        mask = torch.sigmoid(self._logits)
        slopes = torch.stack([1 - mask, -mask])
        if self._learning.touches_both_streams:
            change = (by_stream(g * self._out) * slopes).sum(0)
            passed = (by_stream(g) * self._masks() * self._slope).flatten(0, 1)
        else:
            change = g * self._active(by_stream(self._out)) * self._active(slopes)
            passed = g * self._active(self._masks()) * self._slope
        self._rmsprop_step(
            change / self._learning.product_scales.view(-1, *(1,) * (change.dim() - 1))
        )
        self._out = None
        if self._fused.scale is not None:
            passed = passed * self._by_channel(self._fused.scale, passed)
        return self._stored(passed) if needs_input_gradient else None

    def _stored(self, gradient: Tensor) -> Tensor:
        dtype = self._learning.dtype
        if dtype == torch.float16:
            gradient = gradient.clamp(-FLOAT16_MAX, FLOAT16_MAX)
        return gradient.to(dtype)

    def _masks(self) -> Tensor:
        mask = torch.sigmoid(self._logits)
        return torch.stack([mask, 1 - mask]).to(self._learning.dtype)

    def _active(self, streams: Tensor) -> Tensor:
        """Select, from (2, rows, …), the stream that each row's gradient belongs to."""
        which = self._learning.active_streams.view(-1, *(1,) * (streams.dim() - 2))
        return torch.where(which == 0, streams[0], streams[1])

    def _rmsprop_step(self, change: Tensor) -> None:
        self._squares.mul_(RMSPROP_DECAY).addcmul_(change, change, value=1 - RMSPROP_DECAY)
        root = self._squares.sqrt().add_(RMSPROP_EPSILON)
        self._logits.addcdiv_(change, root, value=-self._learning.learning_rate)

    def _by_channel(self, tensor: Tensor, like: Tensor) -> Tensor:
        return tensor.to(self._learning.dtype).view(1, -1, *(1,) * (like.dim() - 2))


class TorchLossHead:
    """Computes an iteration's terms, and the seeds of its backward pass."""

    def __init__(self, tail: Tail, output: Tensor, learning: LearningState) -> None:
        self._tail = tail
        self._output = output
        self._learning = learning

    def update(self, values: Mapping[int, Tensor]) -> None:
        """Write the iteration's terms, seeds and active streams into the state, and count it."""
        learning = self._learning
        scores = self._tail.scores(values)
        slot = (
            (learning.iteration - learning.history_start).remainder(learning.history_slots).long()
        )
        learning.history.index_copy_(0, slot, scores[None])
        if learning.scales_gradients:
            learning.scales.copy_(
                updated_gradient_scales(learning.initial_scales, learning.initial_sizes, scores)
            )
            torch.mul(learning.scales, learning.unit, out=learning.product_scales)
        seeds = learning.loss.seeds(Terms(self._output, scores[0], scores[1]))
        learning.active_streams.copy_((seeds[0] == 0).int())
        active_seeds = torch.where(seeds[0] != 0, seeds[0], seeds[1])
        scaled = (seeds if learning.touches_both_streams else active_seeds) * learning.scales
        learning.seeds.copy_(scaled.flatten())
        learning.iteration.add_(1)


class TorchBackend:
    """Makes sites and the loss head in plain PyTorch."""

    fuses_pooling = False

    def site(self, fused: FusedGate, logits: Tensor, learning: LearningState) -> TorchSite:
        """Return a site that starts from these logits."""
        return TorchSite(fused, logits, learning)

    def loss_head(self, tail: Tail, output: Tensor, learning: LearningState) -> TorchLossHead:
        """Return the loss head, which computes terms and seeds after the forward pass."""
        return TorchLossHead(tail, output, learning)

    def split_convolutions(
        self,
        program: Sequence[GpuInstruction],
        sites: Sequence[FusedGate],  # noqa: ARG002
        *,
        ends: Set[int],  # noqa: ARG002
        learning: LearningState,  # noqa: ARG002
    ) -> list[GpuInstruction]:
        """Return the program unchanged."""
        return list(program)

    def compile(self, key: Any, run: Callable[[], None]) -> None:
        """Do nothing: PyTorch's kernels are compiled already."""
