"""A Triton kernel for convolutions of few pixels: the sum over what is read, split into parts.

Tensors are channels-last. A program takes a tile of pixels by channels, and one of as many parts of
the sum as the grid is deep; the sum runs over a kernel's taps and, for each, the channels read.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl


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
