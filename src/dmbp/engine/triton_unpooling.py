"""Max-pooling by itself in Triton: winners by their place in a window, and the way back.

Every pixel gathers from the windows it won: added up in one order, so that the sum is the same each
time, which it is not where windows scatter.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dmbp.engine import triton_window_kernels
from dmbp.engine.pooling import Pooling
from dmbp.engine.triton_launch import launch
from dmbp.engine.triton_site import Grid, empty, programs, tile

kernels: Any = triton_window_kernels  # whose arguments Triton reads in its own way


def winners_of(pooling: Pooling, width: int) -> Tensor:
    """Winners as places in their windows, counted row by row, in channels-last order."""
    index = pooling.index
    rows, channels, out_height, out_width = index.shape
    if index.stride(2) != out_width * index.stride(3):
        index = index.contiguous()
    winners = empty(index.shape, torch.uint8, index)
    grid = Grid(rows * out_height * out_width, channels, channels)
    launch(
        kernels.find_winners, programs(grid),
        winners, index, grid.pixels, channels, width, out_height, out_width,
        index.stride(3), index.stride(1), index.stride(0),
        pooling.kernel, pooling.stride, pooling.padding, **tile(grid),
    )  # fmt: skip
    return winners


def unpooled(gradient: Tensor, winners: Tensor, pooling: Pooling, size: Sequence[int]) -> Tensor:
    """The gradient in images of `size`, of one stream or both."""
    rows, channels, *out_size = winners.shape
    result = empty((len(gradient), channels, *size), gradient.dtype, gradient)
    grid = Grid(len(gradient) * size[0] * size[1], channels, channels)
    windows = [side for side in (pooling.kernel, pooling.stride, pooling.padding) for _ in "yx"]
    launch(
        kernels.gather_from_windows, programs(grid),
        result, gradient, winners, grid.pixels, rows, channels, *size, *out_size, *windows,
        IS_POOLING=True, **tile(grid),
    )  # fmt: skip
    return result
