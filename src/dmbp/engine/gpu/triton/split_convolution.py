"""Split-K convolutions in Triton, for convolutions of so few pixels that most of a GPU is idle.

The output of a single image's convolution may have fewer tiles than the GPU has multiprocessors,
and cuDNN leaves the others idle. Here the sum over taps and input channels is split into parts,
which are computed side by side; the site next to the convolution adds them up in the pass over
memory that it makes anyway. A 3 × 3 convolution of both streams of one image takes, on an H200, in
microseconds, with cuDNN and with this: 28 × 28 pixels of 128 channels 7.3 and 5.1, 14 × 14 of 256
8.0 and 5.1, 7 × 7 of 512 11.4 and 5.4. (1 × 1 convolutions are left to cuBLAS, which splits
products itself.)

`split_convolutions` rewrites a program: a convolution's forward pass is split if only a site reads
its output, and its backward pass if a site computed its input.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

from collections import Counter
from collections.abc import Sequence, Set
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dmbp.engine.gpu.fusion import FusedGate
from dmbp.engine.gpu.learning_state import LearningState, SplitSum
from dmbp.engine.gpu.program import AffineInstruction, GpuInstruction
from dmbp.engine.gpu.triton.launch import launch, multiprocessors
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
def split_convolution_kernel(
    sums, images, weight, pixels, channels, in_channels, height, width, out_height, out_width,
    across, stride, padding, steps,
    TILE: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Compute part `program_id(2)` of the `num_programs(2)` parts of a convolution.

    A program takes a tile of `TILE` output pixels by `WIDTH` output channels, and a share of the
    `steps` that the sum consists of; each step multiplies `DEPTH` input channels at one tap. Reads
    `images` (channels-last) and `weight`, which lies in memory as (channels, taps, in_channels);
    writes float32 `sums` (parts, pixels, channels).

    `pixels` counts output pixels over all rows, `in_channels` is a multiple of `DEPTH`, and
    `across` is the kernel's width.
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
    steps_per_tap = in_channels // DEPTH
    weight += c[None, :] * (steps * DEPTH) + d[:, None]
    total = tl.zeros((TILE, WIDTH), tl.float32)
    for step in range(part * steps // parts, (part + 1) * steps // parts):
        tap = step // steps_per_tap
        y = top + tap // across
        x = left + tap % across
        ok = inside & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        pixel = (row * height + y) * width + x
        start = (step - tap * steps_per_tap) * DEPTH
        value = tl.load(
            images + pixel[:, None] * in_channels + start + d[None, :], ok[:, None], other=0.0
        )
        total = tl.dot(value, tl.load(weight + step * DEPTH), total)
    at = (part * pixels + p)[:, None] * channels + c[None, :]
    tl.store(sums + at, total, inside[:, None])


TILE = 64
"""The number of output pixels and output channels per program, and of input channels per step."""

WARPS = 4
STAGES = 3

SUMMANDS = (8, 4)
"""The number of parts if the output has at most a quarter as many tiles as the GPU has
multiprocessors, and if it has at most half as many."""


class SplitConvolution:
    """A convolution of channels-last images without bias, computed in `summands` parts."""

    def __init__(self, weight: Tensor, settings: ConvolutionSettings, summands: int) -> None:
        self._weight = weight.permute(0, 2, 3, 1).contiguous()
        self._settings = settings
        self.summands = summands

    def __call__(self, images: Tensor) -> SplitSum:
        """Return the convolution of all rows, as partial sums."""
        rows, in_channels, *size = images.shape
        channels, *kernel, _ = self._weight.shape
        (stride, _), (padding, _), _, _ = self._settings
        height, width = result_size(size, kernel, self._settings)
        pixels = rows * height * width
        sums = torch.empty(
            self.summands, rows, height, width, channels, device=images.device, dtype=torch.float32
        )
        taps = kernel[0] * kernel[1]
        launch(
            split_convolution_kernel, (-(-pixels // TILE), channels // TILE, self.summands),
            sums, images, self._weight, pixels, channels, in_channels, *size, height, width,
            kernel[1], stride, padding, taps * in_channels // TILE,
            TILE=TILE, WIDTH=TILE, DEPTH=TILE, num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip
        return SplitSum(sums)


def choose_summands(
    shape: Sequence[int],
    settings: ConvolutionSettings,
    *,
    rows: int,
    size: tuple[int, ...],
    device: torch.device,
) -> int:
    """Return the number of parts in which a convolution is fastest; 1 if it should stay whole.

    Args:
        shape: The weight's shape.
        settings: The convolution's settings.
        rows: The number of images, over both streams.
        size: The images' height and width.
        device: The device that the convolution runs on.
    """
    channels, in_channels, *kernel = shape
    stride, padding, dilation, groups = settings
    square = len(set(stride)) == len(set(padding)) == 1
    if not square or dilation != [1, 1] or groups != 1 or kernel == [1, 1]:
        return 1
    if channels % TILE or in_channels % TILE:
        return 1
    height, width = result_size(size, kernel, settings)
    tiles = -(-rows * height * width // TILE) * (channels // TILE)
    processors = multiprocessors(device)
    many, few = SUMMANDS
    return many if 4 * tiles <= processors else few if 2 * tiles <= processors else 1


class SplitConvolutionOperation:
    """A convolution whose forward pass, transpose or both are split."""

    stacks = True

    def __init__(
        self,
        whole: ConvolutionOperation,
        forward: SplitConvolution | None,
        transpose: SplitConvolution | None,
    ) -> None:
        self.reads = whole.reads
        self._whole = whole
        self._forward = forward
        self._transpose = transpose

    def forward(self, values: Sequence[Value]) -> Any:
        """Return the convolution, as partial sums if its forward pass is split."""
        if self._forward is None:
            return self._whole.forward(values)
        return self._forward(channels_last(stacked(values[0])))

    def transpose(self, gradient: Tensor) -> Sequence[Tensor | SplitSum]:
        """Return the transposed convolution, as partial sums if it is split."""
        if self._transpose is None:
            return self._whole.transpose(gradient)
        return [self._transpose(channels_last(gradient))]

    def prepare(self) -> None:
        """Convert the weights for each direction that is not split."""
        self._whole.convolution.prepare(
            forward=self._forward is None, transpose=self._transpose is None
        )


def split_convolutions(
    program: Sequence[GpuInstruction],
    sites: Sequence[FusedGate],
    *,
    ends: Set[int],
    learning: LearningState,
) -> list[GpuInstruction]:
    """Return the program with convolutions next to `sites` split if that is faster.

    `ends` are the indices of values that the tail reads, which must be whole.
    """
    readers = Counter(index for instruction in program for index in instruction.reads)
    read_once = {index for index, count in readers.items() if count == 1} - ends
    site_inputs = {index for site in sites for index in site.terms} & read_once
    site_outputs = {site.output for site in sites}
    return [
        _split_instruction(instruction, site_inputs, site_outputs, learning)
        for instruction in program
    ]


def _split_instruction(
    instruction: GpuInstruction,
    site_inputs: Set[int],
    site_outputs: Set[int],
    learning: LearningState,
) -> GpuInstruction:
    """Return an instruction, with its passes split if it is a convolution and that is faster.

    The forward pass is split if a site reads the output, and the transpose if a site computed the
    input.
    """
    whole = instruction.operation if isinstance(instruction, AffineInstruction) else None
    if not isinstance(whole, ConvolutionOperation):
        return instruction
    convolution = whole.convolution
    forward = transpose = None
    if instruction.output in site_inputs and not convolution.is_biased:
        forward = _split_forward(convolution, rows=2 * learning.rows)
    if instruction.reads[0] in site_outputs:
        transpose = _split_transpose(
            convolution, rows=2 * learning.rows if learning.touches_both_streams else learning.rows
        )
    if forward is None and transpose is None:
        return instruction
    return AffineInstruction(
        SplitConvolutionOperation(whole, forward, transpose), instruction.output, learning
    )


def _split_forward(convolution: Convolution, *, rows: int) -> SplitConvolution | None:
    """Return a convolution split into parts if that is faster, else None."""
    weight, settings, size = convolution.weight, convolution.settings, convolution.input_size
    summands = choose_summands(weight.shape, settings, rows=rows, size=size, device=weight.device)
    return SplitConvolution(weight, settings, summands) if summands > 1 else None


def _split_transpose(convolution: Convolution, *, rows: int) -> SplitConvolution | None:
    """Return a convolution's transpose split into parts if that is faster, else None."""
    channels, in_channels, *kernel = convolution.weight.shape
    settings = flipped_settings(kernel, convolution.settings)
    if settings is None:
        return None
    shape, device = (in_channels, channels, *kernel), convolution.weight.device
    size = result_size(convolution.input_size, kernel, convolution.settings)
    summands = choose_summands(shape, settings, rows=rows, size=size, device=device)
    return SplitConvolution(flip(convolution.weight), settings, summands) if summands > 1 else None
