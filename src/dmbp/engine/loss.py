"""What is minimised over the masks, a number for each row, and its slope in the two terms.

loss = a y⁺ + b y⁻ + c |y~|                     y~ = y − y⁺ − y⁻
its gradient in (y⁺, y⁻) = (a, b) ∓ c            − where y~ ≥ 0, + where y~ < 0
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dmbp.engine.terms import Terms


@dataclass(frozen=True)
class Loss:
    """The weights a, b and c."""

    positive: float
    negative: float
    nuisance: float

    def __call__(self, terms: Terms) -> Tensor:
        """The loss of every row, (rows,)."""
        streams = self.positive * terms.positive + self.negative * terms.negative
        return streams + self.nuisance * terms.nuisance.abs()

    def seeds(self, terms: Terms) -> Tensor:
        """What it asks of each stream, (2, rows): a subgradient, at y~ = 0 the one from above."""
        side = torch.where(terms.nuisance < 0, self.nuisance, -self.nuisance)
        return torch.stack([self.positive + side, self.negative + side])

    @property
    def largest_seed(self) -> float:
        """The most that it asks of a stream, without its sign."""
        return max(abs(self.positive), abs(self.negative)) + abs(self.nuisance)

    @property
    def touches_one_stream(self) -> bool:
        """Whether in every row only one of the two streams has a gradient."""
        sides = (self.nuisance, -self.nuisance)
        return all(self.positive == -side or self.negative == -side for side in sides)
