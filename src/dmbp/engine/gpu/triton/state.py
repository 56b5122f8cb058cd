"""What Triton kernels share: how masks and RMSProp's state are kept, read and moved.

A logit beyond all others marks a closed gate: nothing passes and nothing moves. Where `IS_COMPACT`,
logits are kept in 16 bits, as multiples of 1/2048 up to ±16, and RMSProp's squares in 16 bits,
seven of exponent and nine of mantissa; both are rounded up or down at random in proportion, so that
steps too small for 16 bits count on average. The randomness is a hash of the element's place in its
row and the iteration: a row learned alone and in a batch rounds alike.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

DECAY = tl.constexpr(0.99)
EPSILON = tl.constexpr(1e-8)
CLOSED = tl.constexpr(6e4)
"""Above every logit that is learned, and below what a closed gate's is read as."""

CLOSED_CODE = tl.constexpr(32767)
CODES = tl.constexpr(2048.0)
"""To the unit, of logits in 16 bits."""

LARGEST = tl.constexpr(65504.0)
"""Of float16."""

SMALLEST = tl.constexpr(57 << 9)
"""Of RMSProp's squares: 2^-70, whose root is far below EPSILON."""


@triton.jit
def _noise(element, iteration):
    """Random bits: the lowest fourteen and the highest thirteen are used."""
    x = (element * 0x1B873593 + iteration * 0x2C1B3C6D).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x297A2D39
    x = (x ^ (x >> 15)) * 0x5D5C2B1F
    return x ^ (x >> 16)


@triton.jit
def load_square(squares, at, ok, IS_COMPACT: tl.constexpr):
    if IS_COMPACT:
        code = tl.load(squares + at, ok, other=0).to(tl.uint16, bitcast=True).to(tl.uint32)
        square = ((code + SMALLEST) << 14).to(tl.float32, bitcast=True)
    else:
        square = tl.load(squares + at, ok, other=0.0)
    return square


@triton.jit
def _store_square(squares, at, ok, value, noise, IS_COMPACT: tl.constexpr):
    if IS_COMPACT:
        bits = value.to(tl.uint32, bitcast=True) + (noise & 0x3FFF)
        code = (bits >> 14).to(tl.int32) - SMALLEST
        code = tl.minimum(tl.maximum(code, 0), 65535)
        tl.store(squares + at, code.to(tl.uint16).to(tl.int16, bitcast=True), ok)
    else:
        tl.store(squares + at, value, ok)


@triton.jit
def load_logit(logits, at, ok, IS_COMPACT: tl.constexpr):
    if IS_COMPACT:
        code = tl.load(logits + at, ok, other=0)
        logit = tl.where(code == CLOSED_CODE, 1e9, code.to(tl.float32) / CODES)
    else:
        logit = tl.load(logits + at, ok, other=0.0)
    return logit


@triton.jit
def _store_logit(logits, at, ok, value, noise, IS_COMPACT: tl.constexpr):
    if IS_COMPACT:
        code = tl.floor(value * CODES + (noise >> 19).to(tl.float32) / 8192.0)
        code = tl.minimum(tl.maximum(code, -32766.0), 32766.0)
        tl.store(logits + at, code.to(tl.int16), ok)
    else:
        tl.store(logits + at, value, ok)


@triton.jit
def descend(
    logits, squares, at, ok, logit, square, change, rate, element, iteration,
    IS_COMPACT: tl.constexpr,
):  # fmt: skip
    """One step of RMSProp for a tile."""
    noise = _noise(element, iteration)
    square = DECAY * square + (1 - DECAY) * change * change
    _store_square(squares, at, ok, square, noise, IS_COMPACT)
    moved = logit - rate * change / (tl.sqrt(square) + EPSILON)
    _store_logit(logits, at, ok & (logit < CLOSED), moved, noise, IS_COMPACT)


@triton.jit
def load(tensor, at, ok):
    return tl.load(tensor + at, ok, other=0.0).to(tl.float32)


@triton.jit
def within(value, kind: tl.constexpr):
    """A gradient that float16 can hold: beyond, its sign is what counts."""
    if kind == tl.float16:
        value = tl.minimum(tl.maximum(value, -LARGEST), LARGEST)
    return value


@triton.jit
def tile_of(tensor, first, q, c, ok, stride, channels):
    """A tile of a tensor that may be missing; `first` is the tile's first pixel."""
    return load(tensor + first * stride, q * stride + c, ok & (c < channels))
