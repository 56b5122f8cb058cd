"""A line for each element of an activation: what an activation function is, frozen at x.

The line that stands for a smooth activation φ at z, element by element.

    tangent     φ(z₀) + φ'(z₀) (z − z₀)                  the default
    secant      φ(0) + (φ(z₀) − φ(0)) / z₀ · z           through zero; the tangent's slope near it
    Pieces(k)   the piece at z₀ of φ_k                   φ_k interpolates φ on k pieces

Tangent and secant take φ's own value at z₀, so the network stays exact. With `Pieces`, which the
paper suggests for activations that are not piecewise linear, the linear network is that of another
model, whose activations are φ_k; how far its output is from the model's is reported as the
`approximation_error`. It falls with k², as long as activations stay within reach.

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
    """The affine piece that every element lies on; shapes are those of the activation."""

    slope: Tensor
    offset: Tensor | None = None

    def __call__(self, activation: Tensor, *_: object, **__: object) -> Tensor:
        """The piece at another activation; the operation's settings are inside already."""
        scaled = activation * self.slope
        return scaled if self.offset is None else scaled + self.offset


ActivationFunction = Callable[[Tensor], Tensor]
LineRule = Callable[[ActivationFunction, Tensor], ElementwiseLine]

NEAR_ZERO = 1e-3
"""Where |z| is smaller, a secant through zero would divide rounding by rounding."""


def tangent(activation: ActivationFunction, z: Tensor) -> ElementwiseLine:
    """The tangent at z; where the slope is infinite, as √z has it at zero, the value alone."""
    value, slope = _derivative(activation, z)
    slope = torch.nan_to_num(slope, nan=0.0, posinf=0.0, neginf=0.0)
    return ElementwiseLine(slope, value - slope * z)


def secant(activation: ActivationFunction, z: Tensor) -> ElementwiseLine:
    """The line through (0, φ(0)) and (z, φ(z))."""
    value, derivative = _derivative(activation, z)
    start = activation(torch.zeros_like(z))
    close = z.abs() < NEAR_ZERO
    slope = torch.where(close, derivative, (value - start) / torch.where(close, 1, z))
    return ElementwiseLine(slope, value - slope * z)


@dataclass(frozen=True)
class Pieces:
    """φ interpolated on `count` equal pieces of [−reach, reach], and its tangents beyond."""

    count: int
    reach: float = 8.0

    def __post_init__(self) -> None:
        reaches = self.reach > 0 and math.isfinite(self.reach)
        if not isinstance(self.count, int) or self.count < 1 or not reaches:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(
                "Pieces takes a number of pieces from 1 and a reach above 0, not "
                f"{self.count!r}, {self.reach!r}"
            )

    def __call__(self, activation: ActivationFunction, z: Tensor) -> ElementwiseLine:
        """The piece that each element lies on."""
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


def line_of(smooth: Smoothing) -> LineRule:
    """The line meant by a user's choice."""
    if isinstance(smooth, Pieces):
        return smooth
    if not isinstance(smooth, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"smooth is 'tangent', 'secant' or dmbp.Pieces(k), not {smooth!r}")
    kind, *numbers = smooth.split(":")
    if kind == PIECES:
        return _pieces(smooth, numbers)
    if smooth not in _LINES:
        hint = suggestion(smooth, [*_LINES, f"{PIECES}:16"])
        raise InputError(f"smooth activations cannot be frozen by {smooth!r}; {hint}")
    return _LINES[smooth]


def line_name(line: LineRule) -> str:
    """What a line is called, as `line_of` reads it."""
    if isinstance(line, Pieces):
        return f"{PIECES}:{line.count}:{line.reach:g}"
    return next(name for name, own in _LINES.items() if own is line)


def _pieces(text: str, numbers: list[str]) -> Pieces:
    """The `Pieces` that `pieces:16` or `pieces:16:4` stands for."""
    try:
        count, *reach = numbers
        return Pieces(int(count), *(float(number) for number in reach))
    except (ValueError, TypeError) as error:
        raise InputError(
            "pieces are written as pieces:16 or, with their reach, as pieces:16:8, a number of "
            f"pieces from 1 and a reach above 0; not {text!r}"
        ) from error


def _derivative(activation: ActivationFunction, z: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        at = z.detach().requires_grad_()
        value = activation(at)
        slope = torch.autograd.grad(value.sum(), at)[0]
    # Backward, what `where` leaves out may count as zero times infinity: an ELU's exp(z), z large.
    if slope.isnan().any():
        slope = torch.where(slope.isnan(), _forward_slope(activation, z), slope)
    return value.detach(), slope


def _forward_slope(activation: ActivationFunction, z: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch scripts its own functions when this is first called
        return torch.func.jvp(activation, (z.detach(),), (torch.ones_like(z),))[1]
