"""A line for each element of an activation: what an activation function is, frozen at x."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """The affine piece that every element lies on; shapes are those of the activation."""

    slope: Tensor
    offset: Tensor | None = None

    def __call__(self, activation: Tensor, *_: object, **__: object) -> Tensor:
        """The piece at another activation; the operation's settings are inside already."""
        scaled = activation * self.slope
        return scaled if self.offset is None else scaled + self.offset
