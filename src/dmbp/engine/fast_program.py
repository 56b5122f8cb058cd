"""The CPU engine's program: what runs at every iteration, forward on both streams and back on one.

An instruction reads some values and puts one out; going back it is handed the gradient in that, of
the stream of each row that the loss touches.
"""

from collections.abc import Sequence
from typing import Any

from dmbp.engine.masked_site import MaskedSite
from dmbp.engine.operations import ConvolutionOperation, GatherOperation, Operation
from dmbp.engine.pooled_site import PooledMaskedSite
from dmbp.engine.streams import Value
from dmbp.linear.step import Step


class GateInstruction:
    """An activation and its masks."""

    def __init__(self, step: Step, site: MaskedSite) -> None:
        self.reads = step.reads[:1]
        self.output = step.output
        self.site = site

    def forward(self, values: dict[int, Value]) -> Value:
        """Both streams past the masks."""
        return self.site.forward(values[self.reads[0]])

    def backward(self, gradient: Any, streams: list[int], *, descend: bool) -> Sequence[Any]:
        """The gradient in what was read; the masks move or gather."""
        return [self.site.backward(gradient, streams, descend=descend)]


class MaskedConvolutionInstruction:
    """A convolution whose result only an activation reads: masks are multiplied on the way out."""

    def __init__(self, operation: ConvolutionOperation, step: Step, site: MaskedSite) -> None:
        self.reads = operation.reads
        self.output = step.output
        self.site = site
        self._operation = operation

    def forward(self, values: dict[int, Value]) -> Value:
        """Both streams past convolution and masks."""
        found = self._operation.forward([values[self.reads[0]]], self.site.masks)
        return self.site.keep(found)

    def backward(self, gradient: Any, streams: list[int], *, descend: bool) -> Sequence[Any]:
        """Back through the masks and the convolution."""
        past = self.site.backward(gradient, streams, descend=descend)
        return self._operation.transpose(past)


class PooledInstruction:
    """An activation, its masks and the max-pooling behind it."""

    def __init__(
        self, gate: Step, pool: Step, gather: GatherOperation, site: PooledMaskedSite, given: Any
    ) -> None:
        self.reads = gate.reads[:1]
        self.output = pool.output
        self.site = site
        self._gather = gather
        self._winners = None if given is None else gather.forward([given])

    def forward(self, values: dict[int, Value]) -> Value:
        """Both streams' winners past the masks."""
        winners = self._winners
        if winners is None:
            winners = self._gather.forward([values[self.reads[0]]])
        return self.site.forward(winners)

    def backward(self, gradient: Any, streams: list[int], *, descend: bool) -> Sequence[Any]:
        """Back to the winners, where masks came before them."""
        past = self.site.backward(gradient, streams, descend=descend)
        return self._gather.transpose(past) if self._winners is None else [None]


class PlainInstruction:
    """An affine operation."""

    def __init__(self, operation: Operation, output: int) -> None:
        self.reads = operation.reads
        self.output = output
        self.operation = operation

    def forward(self, values: dict[int, Value]) -> Value:
        """Both streams' result."""
        return self.operation.forward([values[index] for index in self.reads])

    def backward(self, gradient: Any, streams: list[int], *, descend: bool) -> Sequence[Any]:  # noqa: ARG002
        """The gradient in each value read."""
        return self.operation.transpose(gradient)


Instruction = GateInstruction | MaskedConvolutionInstruction | PooledInstruction | PlainInstruction
