"""Lines that replace an activation function at x, one for each element.

A smooth activation φ is replaced, element by element, by one of these lines at z₀:

    tangent     φ(z₀) + φ'(z₀) (z − z₀)                  the default
    secant      φ(0) + (φ(z₀) − φ(0)) / z₀ · z           through zero; the tangent's slope near it
    Pieces(k)   the piece at z₀ of φ_k                   φ_k interpolates φ on k pieces

Tangent and secant equal φ at z₀, so the network stays exact. With `Pieces`, which the paper
suggests for activations that are not piecewise linear, the linear network is that of another model,
whose activations are φ_k. Its relative error against the model is the `approximation_error`, which
falls with k² as long as activations stay within `reach`.

    >>> dmbp.linearize(model, images, target=3, smooth=Pieces(8)).approximation_error
    0.0
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dmbp.errors import InputError, suggestion


@dataclass(frozen=True)
class ElementwiseLine:
    """slope ⊙ z + offset, with a slope and an offset for every element of the activation."""

    slope: Tensor
    offset: Tensor | None = None

    def __call__(self, activation: Tensor, *_: object, **__: object) -> Tensor:
        """Evaluate the line at another activation; the operation's other arguments are ignored."""
        scaled = activation * self.slope
        return scaled if self.offset is None else scaled + self.offset


ActivationFunction = Callable[[Tensor], Tensor]
LineRule = Callable[[ActivationFunction, Tensor], ElementwiseLine]

NEAR_ZERO = 1e-3
"""If |z| is smaller, a secant through zero would divide rounding error by rounding error."""


def tangent(activation: ActivationFunction, z: Tensor) -> ElementwiseLine:
    """Return the tangent at z; an infinite slope, such as that of √z at zero, becomes zero."""
    value, slope = _derivative(activation, z)
    slope = torch.nan_to_num(slope, nan=0.0, posinf=0.0, neginf=0.0)
    return ElementwiseLine(slope, value - slope * z)


def secant(activation: ActivationFunction, z: Tensor) -> ElementwiseLine:
    """Return the line through (0, φ(0)) and (z, φ(z))."""
    value, derivative = _derivative(activation, z)
    start = activation(torch.zeros_like(z))
    close = z.abs() < NEAR_ZERO
    slope = torch.where(close, derivative, (value - start) / torch.where(close, 1, z))
    return ElementwiseLine(slope, value - slope * z)


@dataclass(frozen=True)
class Pieces:
    """Interpolation of φ on `count` equal pieces of [−reach, reach], with tangents beyond.

    Args:
        count: The number of pieces, at least 1.
        reach: Half the width of the interval, above 0.

    Raises:
        InputError: If `count` or `reach` is out of range.
    """

    count: int
    reach: float = 8.0

    def __post_init__(self) -> None:
        reaches = self.reach > 0 and math.isfinite(self.reach)
        if not isinstance(self.count, int) or self.count < 1 or not reaches:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(
                "Pieces needs at least 1 piece and a reach above 0, got "
                f"{self.count!r} and {self.reach!r}"
            )

    def __call__(self, activation: ActivationFunction, z: Tensor) -> ElementwiseLine:
        """Return the line of the piece that each element lies on."""
        width = 2 * self.reach / self.count
        which = torch.floor((z + self.reach) / width).clamp(0, self.count - 1)
        left = which * width - self.reach
        value = activation(left)
        chord = (activation(left + width) - value) / width
        inner = ElementwiseLine(chord, value - chord * left)
        edge = tangent(activation, z.sign() * self.reach)
        inside = z.abs() <= self.reach
        assert inner.offset is not None
        assert edge.offset is not None
        return ElementwiseLine(
            torch.where(inside, inner.slope, edge.slope),
            torch.where(inside, inner.offset, edge.offset),
        )


Smoothing = str | Pieces
"""How smooth activations are frozen: "tangent", "secant", `Pieces(16, 4.0)` or "pieces:16:4"."""

_LINES: dict[str, LineRule] = {"tangent": tangent, "secant": secant}

PIECES = "pieces"


def parse_line(smooth: Smoothing) -> LineRule:
    """Return the line rule that a `smooth` setting names."""
    if isinstance(smooth, Pieces):
        return smooth
    if not isinstance(smooth, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"smooth must be 'tangent', 'secant' or dmbp.Pieces(k), not {smooth!r}")
    kind, *numbers = smooth.split(":")
    if kind == PIECES:
        return _parse_pieces(smooth, numbers)
    if smooth not in _LINES:
        hint = suggestion(smooth, [*_LINES, f"{PIECES}:16"])
        raise InputError(f"smooth activations cannot be frozen by {smooth!r}; {hint}")
    return _LINES[smooth]


def line_name(line: LineRule) -> str:
    """Return the `smooth` setting that names a line rule, as text."""
    if isinstance(line, Pieces):
        return f"{PIECES}:{line.count}:{line.reach:g}"
    return next(name for name, own in _LINES.items() if own is line)


def _parse_pieces(text: str, numbers: list[str]) -> Pieces:
    """Return the `Pieces` that `pieces:16` or `pieces:16:4` stands for."""
    try:
        count, *reach = numbers
        return Pieces(int(count), *(float(number) for number in reach))
    except (ValueError, TypeError) as error:
        raise InputError(
            "pieces are written as pieces:16 or, with a reach, as pieces:16:8, with at least 1 "
            f"piece and a reach above 0; not as {text!r}"
        ) from error


def _derivative(activation: ActivationFunction, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the activation's value and its slope at every element."""
    with torch.enable_grad():
        at = z.detach().requires_grad_()
        value = activation(at)
        slope = torch.autograd.grad(value.sum(), at)[0]
    # In a backward pass the branch that `where` does not select can contribute zero times infinity,
    # as exp(z) does in an ELU for large z. Forward-mode differentiation has no such product.
    # While a CUDA graph is recorded, no number can be looked at.
    is_recording = z.is_cuda and torch.cuda.is_current_stream_capturing()
    if is_recording or slope.isnan().any():
        slope = torch.where(slope.isnan(), _forward_slope(activation, z), slope)
    return value.detach(), slope


def _forward_slope(activation: ActivationFunction, z: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first call makes torch script its own functions
        return torch.func.jvp(activation, (z.detach(),), (torch.ones_like(z),))[1]
