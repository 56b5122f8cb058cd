"""A Triton kernel for convolutions of few pixels: the sum over what is read, split into parts.

Tensors are channels-last. A program takes a tile of pixels by channels, and one of as many parts of
the sum as the grid is deep; the sum runs over a kernel's taps and, for each, the channels read.

Convolutions of few pixels on a GPU, their sum split into parts that are computed side by side.

A single image's convolution has fewer tiles of results than a GPU has processors, and cuDNN leaves
the others idle. The site that reads the parts adds them, in the pass it makes anyway. 3 × 3, both
streams of one image on an H200, cuDNN against this, in microseconds: 28 × 28 pixels of 128 channels
7.3 and 5.1, 14 × 14 of 256 8.0 and 5.1, 7 × 7 of 512 11.4 and 5.4. (1 × 1 is left to cuBLAS, which
splits products itself.)

Which convolutions of the GPU engine's program are split: those whose parts a site adds up.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

from collections import Counter
from collections.abc import Sequence, Set
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dmbp.engine.gpu.merging import Merged
from dmbp.engine.gpu.program import GpuInstruction, PlainInstruction
from dmbp.engine.gpu.state import LearningState, Split
from dmbp.engine.gpu.triton.launch import launch
from dmbp.engine.plan.convolution import (
    Convolution,
    flip,
    flipped_settings,
    result_size,
)
from dmbp.engine.plan.kernels import ConvolutionSettings
from dmbp.engine.plan.operations import ConvolutionOperation
from dmbp.engine.plan.streams import Value, channels_last, stacked


@triton.jit(
    do_not_specialize=[
        "pixels", "height", "width", "out_height", "out_width", "across", "stride", "padding",
        "steps",
    ]
)  # fmt: skip
def split_convolution(
    sums, images, weight, pixels, channels, read, height, width, out_height, out_width,
    across, stride, padding, steps,
    TILE: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Part `program_id(2)` of a convolution.

    `pixels` are those of the result, over all rows; `read` the channels of the images, a multiple
    of `DEPTH`; `across` the kernel's width; `steps` of `DEPTH` make up the whole sum. The weight
    lies in memory as (channels, taps, read).
    """
    p = tl.program_id(0) * TILE + tl.arange(0, TILE)
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    d = tl.arange(0, DEPTH)
    part = tl.program_id(2)
    parts = tl.num_programs(2)
    inside = p < pixels
    row = p // (out_height * out_width)
    top = (p // out_width) % out_height * stride - padding
    left = p % out_width * stride - padding
    steps_a_tap = read // DEPTH
    weight += c[None, :] * (steps * DEPTH) + d[:, None]
    total = tl.zeros((TILE, WIDTH), tl.float32)
    for step in range(part * steps // parts, (part + 1) * steps // parts):
        tap = step // steps_a_tap
        y = top + tap // across
        x = left + tap % across
        ok = inside & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        pixel = (row * height + y) * width + x
        start = (step - tap * steps_a_tap) * DEPTH
        value = tl.load(images + pixel[:, None] * read + start + d[None, :], ok[:, None], other=0.0)
        total = tl.dot(value, tl.load(weight + step * DEPTH), total)
    at = (part * pixels + p)[:, None] * channels + c[None, :]
    tl.store(sums + at, total, inside[:, None])


TILE = 64
"""Pixels, channels, and channels read at a step, of a program."""

WARPS = 4
STAGES = 3

SUMMANDS = (8, 4)
"""Where results have a quarter as many tiles as there are processors, or half as many."""

PROCESSORS = 132
"""Of an H200; where kernels are interpreted there are none."""


class SplitConvolution:
    """A convolution without bias of channels-last images, in `summands` parts."""

    def __init__(self, weight: Tensor, settings: ConvolutionSettings, summands: int) -> None:
        self._weight = weight.permute(0, 2, 3, 1).contiguous()
        self._settings = settings
        self.summands = summands

    def __call__(self, images: Tensor) -> Split:
        """The convolution of all rows."""
        rows, read, *size = images.shape
        channels, *kernel, _ = self._weight.shape
        (stride, _), (padding, _), _, _ = self._settings
        height, width = result_size(size, kernel, self._settings)
        pixels = rows * height * width
        sums = torch.empty(
            self.summands, rows, height, width, channels, device=images.device, dtype=torch.float32
        )
        taps = kernel[0] * kernel[1]
        launch(
            split_convolution, (-(-pixels // TILE), channels // TILE, self.summands),
            sums, images, self._weight, pixels, channels, read, *size, height, width,
            kernel[1], stride, padding, taps * read // TILE,
            TILE=TILE, WIDTH=TILE, DEPTH=TILE, num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip
        return Split(sums)


def parts_where_faster(
    shape: Sequence[int],
    settings: ConvolutionSettings,
    *,
    rows: int,
    size: tuple[int, ...],
    device: torch.device,
) -> int:
    """In how many parts the convolution of `rows` images of `size` is fastest; one is whole.

    Its weight is of some `shape`.
    """
    channels, read, *kernel = shape
    stride, padding, dilation, groups = settings
    square = len(set(stride)) == len(set(padding)) == 1
    if not square or dilation != [1, 1] or groups != 1 or kernel == [1, 1]:
        return 1
    if channels % TILE or read % TILE:
        return 1
    height, width = result_size(size, kernel, settings)
    tiles = -(-rows * height * width // TILE) * (channels // TILE)
    return _summands(tiles, device)


def _summands(tiles: int, device: torch.device) -> int:
    processors = PROCESSORS
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    many, some = SUMMANDS
    return many if 4 * tiles <= processors else some if 2 * tiles <= processors else 1


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
        return self._forward(channels_last(stacked(values[0])))

    def transpose(self, gradient: Tensor) -> Sequence[Tensor | Split]:
        """The transposed convolution."""
        if self._back is None:
            return self._whole.transpose(gradient)
        return [self._back(channels_last(gradient))]

    def prepare(self) -> None:
        """Make what runs the part that is whole."""
        self._whole.convolution.prepare(forward=self._forward is None, transpose=self._back is None)


def split(
    program: Sequence[GpuInstruction],
    sites: Sequence[Merged],
    *,
    ends: Set[int],
    learning: LearningState,
) -> list[GpuInstruction]:
    """The program with convolutions split next to `sites`, where it is faster.

    `ends` are values that the score reads.
    """
    readers = Counter(index for instruction in program for index in instruction.reads)
    read_once = {index for index, count in readers.items() if count == 1} - ends
    before = {index for site in sites for index in site.terms} & read_once
    after = {site.output for site in sites}
    return [_split(instruction, before, after, learning) for instruction in program]


def _split(
    instruction: GpuInstruction, before: Set[int], after: Set[int], learning: LearningState
) -> GpuInstruction:
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
