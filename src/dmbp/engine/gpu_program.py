"""The GPU engine's program: what runs at every iteration, forward on both streams and back.

An instruction reads some values and puts one out; going back it is handed the parts of its
result's gradient, and the tail's share where the score reads that result.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from dmbp.engine.learning import Gradient, Learning, Shared, Split, seeded
from dmbp.engine.merging import Merged
from dmbp.engine.operations import Operation
from dmbp.engine.plan import added, transpose_both
from dmbp.engine.scaling import GradientRange
from dmbp.engine.streams import Value, stacked


class GpuSite(Protocol):
    """A site with what is merged into it."""

    @property
    def logits(self) -> Tensor:
        """The learned scalars as they stand."""
        ...

    def past(self, gradient: Tensor, slope: Tensor, seen: GradientRange | None) -> Tensor:
        """Both streams' gradients, stacked and in single precision, past gate and masks."""
        ...

    def forward(self, terms: Sequence[Any]) -> Tensor:
        """Both streams past it."""
        ...

    def backward(self, gradient: Gradient, *, goes_on: bool) -> Tensor | None:
        """The gradient in what is read, where it `goes_on`; the masks descend."""
        ...


@runtime_checkable
class Preparing(Protocol):
    """An operation that makes what runs it when it is first run, unless it is told to."""

    def prepare(self) -> None:
        """Make it now."""
        ...


class SiteInstruction:
    """A site and what is merged into it."""

    def __init__(self, merged: Merged, site: GpuSite, *, goes_on: bool) -> None:
        self.reads = list(merged.terms)
        self.output = merged.output
        self.site = site
        self._goes_on = goes_on

    def forward(self, values: Mapping[int, Any]) -> Tensor:
        """Both streams past it."""
        return self.site.forward([_tensor(values[index]) for index in self.reads])

    def backward(self, gradient: Gradient) -> Sequence[Tensor | None]:
        """The gradient in each value read; the masks descend."""
        found = self.site.backward(gradient, goes_on=self._goes_on)
        return [found] * len(self.reads)


class PlainInstruction:
    """An affine operation."""

    def __init__(self, operation: Operation, output: int, learning: Learning) -> None:
        self.reads = operation.reads
        self.output = output
        self.operation = operation
        self._learning = learning

    def prepare(self) -> None:
        """Make of weights what iterations run, where that is not done yet."""
        if isinstance(self.operation, Preparing):
            self.operation.prepare()

    def forward(self, values: Mapping[int, Any]) -> Value | Split:
        """Both streams' result."""
        return self.operation.forward([both_streams(values[index]) for index in self.reads])

    def backward(self, gradient: Gradient) -> Sequence[Any]:
        """The gradient in each value read."""
        parts: list[Any] = list(gradient.parts)
        if gradient.tail is not None:
            parts.append(seeded(gradient.tail, self._learning))
        total = parts[0]
        for part in parts[1:]:
            total = added(total, part)
        if self._learning.is_both:
            return transpose_both(self.operation, total)
        return self.operation.transpose(total)


Instruction = SiteInstruction | PlainInstruction


def both_streams(value: Any) -> Value:
    """A value of both streams, where x alone decides it too."""
    if isinstance(value, Shared):
        return torch.cat([value.value, value.value])
    return value


def _tensor(value: Any) -> Tensor | Shared | Split:
    return value if isinstance(value, Shared | Split) else stacked(value)
