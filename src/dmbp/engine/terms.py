"""The three terms a score splits into, and what is read out once the masks are learned."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Terms:
    """y = y⁺ + y⁻ + y~ for every row (Eq. 9); each of shape (rows,), or of many
    iterations (iterations, rows).

    Nuisance is the remainder, so the three always add up to the model's score. The last layer's own
    bias is no filter's output and carries no mask: it enters y⁺ and y⁻ alike, and y~ absorbs it.
    """

    output: Tensor
    positive: Tensor
    negative: Tensor

    @property
    def nuisance(self) -> Tensor:
        """What neither stream carries: the paths that change sides on their way."""
        return self.output - self.positive - self.negative


@dataclass(frozen=True)
class Readout:
    """The terms and the two linear maps ∇F⁺ and ∇F⁻ (shaped like the inputs) at some masks."""

    terms: Terms
    positive_map: Tensor
    negative_map: Tensor
