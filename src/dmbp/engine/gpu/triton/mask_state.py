"""How Triton kernels store masks and RMSProp's state, and the device functions that access it.

A site has a logit and RMSProp's mean square for every element, in the memory order of its output. A
logit larger than any learned one marks a closed gate: nothing passes it and its mask never changes.
A ReLU's slope therefore need not be read from memory.

If `IS_COMPACT`, both have 16 bits. Logits are multiples of 1/2048 between ±16; squares have seven
bits of exponent and nine of mantissa. Both are rounded stochastically: up with a probability
proportional to the remainder, so that steps too small for 16 bits count on average. The random bits
are a hash of the element's index in its row and of the iteration, so a row is rounded in the same
way alone and in a batch.

In device functions, `at` holds offsets into a tensor, `ok` is the boolean mask of a load or store,
and `mask` always means the paper's mask σ.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from dmbp.engine.base import RMSPROP_DECAY, RMSPROP_EPSILON
from dmbp.engine.gpu import half_precision
from dmbp.engine.gpu.learning_state import LearningState
from dmbp.engine.gpu.triton.launch import launch
from dmbp.engine.plan.streams import channels_last

DECAY = tl.constexpr(RMSPROP_DECAY)
EPSILON = tl.constexpr(RMSPROP_EPSILON)
CLOSED = tl.constexpr(6e4)
"""Above every learned logit, and below the value that a closed gate's logit is loaded as."""

CLOSED_CODE = tl.constexpr(32767)
CODES_PER_UNIT = tl.constexpr(2048.0)
"""The 16-bit code that marks a closed gate, and the number of codes per unit of a logit."""

FLOAT16_MAX = tl.constexpr(half_precision.FLOAT16_MAX)

SMALLEST_SQUARE = tl.constexpr(57 << 9)
"""The square that code 0 stands for, as the upper 18 bits of a float32: 2^-70, whose root is far
below EPSILON."""


@triton.jit
def _random_bits(element, iteration):
    """Hash an element's index and an iteration; callers use the lowest 14 and highest 13 bits."""
    x = (element * 0x1B873593 + iteration * 0x2C1B3C6D).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x297A2D39
    x = (x ^ (x >> 15)) * 0x5D5C2B1F
    return x ^ (x >> 16)


@triton.jit
def load_square(squares, at, ok, IS_COMPACT: tl.constexpr):
    """Load RMSProp's mean squares of a tile as float32."""
    if IS_COMPACT:
        code = tl.load(squares + at, ok, other=0).to(tl.uint16, bitcast=True).to(tl.uint32)
        square = ((code + SMALLEST_SQUARE) << 14).to(tl.float32, bitcast=True)
    else:
        square = tl.load(squares + at, ok, other=0.0)
    return square


@triton.jit
def _store_square(squares, at, ok, value, noise, IS_COMPACT: tl.constexpr):
    """Store mean squares; if compact, round them stochastically by the lowest 14 random bits."""
    if IS_COMPACT:
        bits = value.to(tl.uint32, bitcast=True) + (noise & 0x3FFF)
        code = (bits >> 14).to(tl.int32) - SMALLEST_SQUARE
        code = tl.minimum(tl.maximum(code, 0), 65535)
        tl.store(squares + at, code.to(tl.uint16).to(tl.int16, bitcast=True), ok)
    else:
        tl.store(squares + at, value, ok)


@triton.jit
def load_logit(logits, at, ok, IS_COMPACT: tl.constexpr):
    """Load the logits of a tile as float32; those of closed gates are larger than `CLOSED`."""
    if IS_COMPACT:
        code = tl.load(logits + at, ok, other=0)
        logit = tl.where(code == CLOSED_CODE, 1e9, code.to(tl.float32) / CODES_PER_UNIT)
    else:
        logit = tl.load(logits + at, ok, other=0.0)
    return logit


@triton.jit
def _store_logit(logits, at, ok, value, noise, IS_COMPACT: tl.constexpr):
    """Store logits; if compact, round them stochastically by the highest 13 random bits."""
    if IS_COMPACT:
        code = tl.floor(value * CODES_PER_UNIT + (noise >> 19).to(tl.float32) / 8192.0)
        code = tl.minimum(tl.maximum(code, -32766.0), 32766.0)
        tl.store(logits + at, code.to(tl.int16), ok)
    else:
        tl.store(logits + at, value, ok)


@triton.jit
def rmsprop_step(
    logits, squares, at, ok, logit, square, change, rate, element, iteration,
    IS_COMPACT: tl.constexpr,
):  # fmt: skip
    """Take an RMSProp step for a tile: update squares and open gates' logits in memory.

    `logit` and `square` are the loaded values, `change` is the loss's unscaled gradient with
    respect to the logits, and `element` is each element's index in its row, which seeds the random
    bits.
    """
    noise = _random_bits(element, iteration)
    square = DECAY * square + (1 - DECAY) * change * change
    _store_square(squares, at, ok, square, noise, IS_COMPACT)
    moved = logit - rate * change / (tl.sqrt(square) + EPSILON)
    _store_logit(logits, at, ok & (logit < CLOSED), moved, noise, IS_COMPACT)


@triton.jit
def load_float32(tensor, at, ok):
    """Load elements as float32, zero where not `ok`."""
    return tl.load(tensor + at, ok, other=0.0).to(tl.float32)


@triton.jit
def clamp_to_float16(value, dtype: tl.constexpr):
    """Clamp a gradient to float16's range if `dtype` is float16; an overflow keeps its sign."""
    if dtype == tl.float16:
        value = tl.minimum(tl.maximum(value, -FLOAT16_MAX), FLOAT16_MAX)
    return value


@triton.jit
def load_optional_tile(tensor, first, q, c, ok, stride, channels):
    """Load a tile of a tensor as float32, or zeros if `channels` is 0: the tensor is missing.

    `first` is the tile's first pixel, in 64 bits; `q` are pixels within the tile, and `c` are
    channels of the tensor.
    """
    return load_float32(tensor + first * stride, q * stride + c, ok & (c < channels))


@triton.jit(do_not_specialize=["elements"])
def encode_logits_kernel(codes, logits, is_open, elements, BLOCK: tl.constexpr):
    """Encode float32 logits as int16 codes, rounded to nearest, and mark closed gates."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    k = tl.arange(0, BLOCK)
    ok = start + k < elements
    code = load_float32(logits + start, k, ok) * CODES_PER_UNIT
    code = tl.floor(tl.minimum(tl.maximum(code, -32766.0), 32766.0) + 0.5)
    code = tl.where(load_float32(is_open + start, k, ok) != 0, code, 1.0 * CLOSED_CODE)
    tl.store(codes + start + k, code.to(tl.int16), ok)


BLOCK = 1024
"""The number of elements per program in the elementwise kernels."""


def encode_logits(logits: Tensor, is_open: Tensor) -> Tensor:
    """Return the 16-bit codes of logits, in channels-last memory."""
    logits = channels_last(logits.float())
    codes = torch.empty_like(logits, dtype=torch.int16)
    launch(
        encode_logits_kernel, block_grid(logits),
        codes, logits, dense_slope(is_open, logits), logits.numel(), BLOCK=BLOCK,
    )  # fmt: skip
    return codes


def dense_slope(slope: Tensor, like: Tensor) -> Tensor:
    """Return a slope for each element of `like`, in channels-last memory; booleans as 0 and 1."""
    slope = channels_last(slope.expand(like.shape))
    return slope.view(torch.uint8) if slope.dtype == torch.bool else slope


def block_grid(tensor: Tensor) -> tuple[int]:
    """Return the launch grid of an elementwise kernel."""
    return (-(-tensor.numel() // BLOCK),)


class MaskState:
    """The logits and mean squares of a site's elements, as the kernels store them.

    Attributes:
        logits: int16 codes if compact, else float32 with infinity at closed gates; channels-last.
        squares: RMSProp's mean squares: int16 codes if compact, else float32; channels-last.
    """

    def __init__(self, logits: Tensor, is_open: Tensor, learning: LearningState) -> None:
        if learning.is_compact:
            self.logits = encode_logits(logits, is_open)
        else:
            self.logits = channels_last(torch.where(is_open, logits.float(), torch.inf))
        self.squares = torch.zeros_like(self.logits)

    def decoded(self) -> Tensor:
        """Return the logits in float32, with zeros at closed gates, where they have no effect."""
        if self.logits.dtype == torch.int16:
            return torch.where(
                self.logits == CLOSED_CODE.value, 0, self.logits.float() / CODES_PER_UNIT.value
            )
        return torch.where(torch.isinf(self.logits), 0, self.logits)
