"""Which convolutions of the GPU engine's program are split: those whose parts a site adds up."""

from collections import Counter
from collections.abc import Sequence, Set
from typing import Any

from torch import Tensor

from dmbp.engine.convolution import Convolution, flip, flipped_settings, result_size
from dmbp.engine.gpu_program import Instruction, PlainInstruction
from dmbp.engine.learning import Learning, Split
from dmbp.engine.merging import Merged
from dmbp.engine.operations import ConvolutionOperation
from dmbp.engine.streams import Value, in_order, stacked
from dmbp.engine.triton_convolution import SplitConvolution, parts_where_faster


class SplitOperation:
    """A convolution of which one way, or both, goes to a site in parts; the other is whole."""

    stacks = True

    def __init__(
        self,
        whole: ConvolutionOperation,
        forward: SplitConvolution | None,
        back: SplitConvolution | None,
    ) -> None:
        self.reads = whole.reads
        self._whole = whole
        self._forward = forward
        self._back = back

    def forward(self, values: Sequence[Value]) -> Any:
        """The convolution."""
        if self._forward is None:
            return self._whole.forward(values)
        return self._forward(in_order(stacked(values[0])))

    def transpose(self, gradient: Tensor) -> Sequence[Tensor | Split]:
        """The transposed convolution."""
        if self._back is None:
            return self._whole.transpose(gradient)
        return [self._back(in_order(gradient))]

    def prepare(self) -> None:
        """Make what runs the part that is whole."""
        self._whole.convolution.prepare(forward=self._forward is None, transpose=self._back is None)


def split(
    program: Sequence[Instruction], sites: Sequence[Merged], *, ends: Set[int], learning: Learning
) -> list[Instruction]:
    """The program with convolutions split next to `sites`, where it is faster.

    `ends` are values that the score reads.
    """
    readers = Counter(index for instruction in program for index in instruction.reads)
    read_once = {index for index, count in readers.items() if count == 1} - ends
    before = {index for site in sites for index in site.terms} & read_once
    after = {site.output for site in sites}
    return [_split(instruction, before, after, learning) for instruction in program]


def _split(
    instruction: Instruction, before: Set[int], after: Set[int], learning: Learning
) -> Instruction:
    whole = instruction.operation if isinstance(instruction, PlainInstruction) else None
    if not isinstance(whole, ConvolutionOperation):
        return instruction
    convolution = whole.convolution
    forward = back = None
    if instruction.output in before and not convolution.is_biased:
        forward = _forward(convolution, rows=2 * learning.rows)
    if instruction.reads[0] in after:
        back = _back(convolution, rows=2 * learning.rows if learning.is_both else learning.rows)
    if forward is None and back is None:
        return instruction
    return PlainInstruction(SplitOperation(whole, forward, back), instruction.output, learning)


def _forward(convolution: Convolution, *, rows: int) -> SplitConvolution | None:
    weight, settings, size = convolution.weight, convolution.settings, convolution.input_size
    parts = parts_where_faster(weight.shape, settings, rows=rows, size=size, device=weight.device)
    return SplitConvolution(weight, settings, parts) if parts > 1 else None


def _back(convolution: Convolution, *, rows: int) -> SplitConvolution | None:
    channels, read, *kernel = convolution.weight.shape
    settings = flipped_settings(kernel, convolution.settings)
    if settings is None:
        return None
    shape, device = (read, channels, *kernel), convolution.weight.device
    size = result_size(convolution.input_size, kernel, convolution.settings)
    parts = parts_where_faster(shape, settings, rows=rows, size=size, device=device)
    return SplitConvolution(flip(convolution.weight), settings, parts) if parts > 1 else None
