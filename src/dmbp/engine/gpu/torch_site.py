"""Sites and scores in plain PyTorch, for GPUs without Triton: the same numbers, more passes."""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from dmbp.engine.base import Terms
from dmbp.engine.gpu.merging import Merged
from dmbp.engine.gpu.program import GpuInstruction
from dmbp.engine.gpu.state import (
    HISTORY_SLOTS,
    LARGEST,
    GradientRange,
    LearningState,
    Shared,
    StreamGradient,
    followed,
    seeded,
)
from dmbp.engine.plan.kernels import Kernels
from dmbp.engine.plan.streams import by_stream, channels_last
from dmbp.engine.plan.tail import Tail
from dmbp.linear.lines import ElementwiseLine

DECAY, EPSILON = 0.99, 1e-8


class TorchSite:
    """A gate with the bias, sum or batch norm before it."""

    def __init__(self, merged: Merged, logits: Tensor, learning: LearningState) -> None:
        piece = merged.gate.function
        assert isinstance(piece, ElementwiseLine)
        self._merged = merged
        self._learning = learning
        self._logits = channels_last(logits.float().clone())
        self._squares = torch.zeros_like(self._logits)
        self._slope = piece.slope.to(learning.dtype)
        offset = piece.offset
        self._offset = None if offset is None else (offset * learning.unit).to(learning.dtype)
        self._out: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """The learned scalars as they stand."""
        return self._logits

    def past(self, gradient: Tensor, slope: Tensor, seen: GradientRange | None) -> Tensor:
        """Both streams' gradients past gate and masks."""
        if seen is not None:
            seen.see(gradient)
        return Kernels().pass_gate(gradient, slope, self._logits)

    def forward(self, terms: Sequence[Tensor | Shared]) -> Tensor:
        """Both streams past the activation and their masks."""
        z, *rest = (_both(term) for term in terms)
        if self._merged.scale is not None:
            z = z * self._by_channel(self._merged.scale, z)
        for other in rest:
            z = z + other
        if self._merged.shift is not None:
            z = z + self._by_channel(self._merged.shift * self._learning.unit, z)
        streams = by_stream(z) * self._slope
        streams = streams if self._offset is None else streams + self._offset
        self._out = (streams * self._masks()).flatten(0, 1)
        return self._out

    def backward(self, gradient: StreamGradient, *, goes_on: bool) -> Tensor | None:
        """The gradient in what the gate reads, where it `goes_on`; the masks descend."""
        assert self._out is not None
        parts = list(gradient.parts)
        if gradient.tail is not None:
            parts.append(seeded(gradient.tail, self._learning))
        g = sum(parts[1:], parts[0]).float()
        mask = torch.sigmoid(self._logits)
        slopes = torch.stack([1 - mask, -mask])
        if self._learning.is_both:
            change = (by_stream(g * self._out) * slopes).sum(0)
            passed = (by_stream(g) * self._masks() * self._slope).flatten(0, 1)
        else:
            change = g * self._active(by_stream(self._out)) * self._active(slopes)
            passed = g * self._active(self._masks()) * self._slope
        self._descend(change / self._learning.products.view(-1, *(1,) * (change.dim() - 1)))
        self._out = None
        if self._merged.scale is not None:
            passed = passed * self._by_channel(self._merged.scale, passed)
        return self._stored(passed) if goes_on else None

    def _stored(self, gradient: Tensor) -> Tensor:
        dtype = self._learning.dtype
        if dtype == torch.float16:
            gradient = gradient.clamp(-LARGEST, LARGEST)
        return gradient.to(dtype)

    def _masks(self) -> Tensor:
        mask = torch.sigmoid(self._logits)
        return torch.stack([mask, 1 - mask]).to(self._learning.dtype)

    def _active(self, streams: Tensor) -> Tensor:
        """Of (2, rows, …), the stream that each row's gradient is of."""
        which = self._learning.streams.view(-1, *(1,) * (streams.dim() - 2))
        return torch.where(which == 0, streams[0], streams[1])

    def _descend(self, change: Tensor) -> None:
        self._squares.mul_(DECAY).addcmul_(change, change, value=1 - DECAY)
        root = self._squares.sqrt().add_(EPSILON)
        self._logits.addcdiv_(change, root, value=-self._learning.rate)

    def _by_channel(self, tensor: Tensor, like: Tensor) -> Tensor:
        return tensor.to(self._learning.dtype).view(1, -1, *(1,) * (like.dim() - 2))


class TorchBackend:
    """The GPU engine's back end without Triton."""

    merges_pooling = False

    def site(self, merged: Merged, logits: Tensor, learning: LearningState) -> "TorchSite":
        """Return a site that starts from these logits."""
        return TorchSite(merged, logits, learning)

    def scores(self, tail: Tail, output: Tensor, learning: LearningState) -> "TorchScores":
        """Return what computes the terms and seeds."""
        return TorchScores(tail, output, learning)

    def split_convolutions(
        self,
        program: Sequence[GpuInstruction],
        sites: Sequence[Merged],  # noqa: ARG002
        *,
        ends: Set[int],  # noqa: ARG002
        learning: LearningState,  # noqa: ARG002
    ) -> list[GpuInstruction]:
        """Return the program as it is."""
        return list(program)

    def compile(self, key: Any, run: Callable[[], None]) -> None:
        """Do nothing: PyTorch's kernels are compiled already."""


class TorchScores:
    """Computes the terms of an iteration and the seeds of its way back."""

    def __init__(self, tail: Tail, output: Tensor, learning: LearningState) -> None:
        self._tail = tail
        self._output = output
        self._learning = learning

    def update(self, values: Mapping[int, Tensor]) -> None:
        """Set the learning's terms, seeds and streams, and count the iteration."""
        learning = self._learning
        scores = self._tail.scores(values)
        place = (learning.iteration - learning.since).remainder(HISTORY_SLOTS).long()
        learning.past.index_copy_(0, place, scores[None])
        if learning.is_scaled:
            learning.scales.copy_(followed(learning.starts, learning.sizes, scores))
            torch.mul(learning.scales, learning.unit, out=learning.products)
        seeds = learning.loss.seeds(Terms(self._output, scores[0], scores[1]))
        learning.streams.copy_((seeds[0] == 0).int())
        one = torch.where(seeds[0] != 0, seeds[0], seeds[1])
        scaled = (seeds if learning.is_both else one) * learning.scales
        learning.seeds.copy_(scaled.flatten())
        learning.iteration.add_(1)


def _both(term: Tensor | Shared) -> Tensor:
    return torch.cat([term.value, term.value]) if isinstance(term, Shared) else term
