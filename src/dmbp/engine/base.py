"""The three terms a score splits into, and what is read out once the masks are learned.

What is minimised over the masks, a number for each row, and its slope in the two terms.

loss = a y⁺ + b y⁻ + c |y~|                     y~ = y − y⁺ − y⁻
its gradient in (y⁺, y⁻) = (a, b) ∓ c            − where y~ ≥ 0, + where y~ < 0

What an engine does: learn the masks of one linear network, an iteration at a time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
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


Logits = Mapping[str, Tensor]
"""The learned scalars, by site: σ = sigmoid(logit)."""

OnIteration = Callable[[], None] | None


class Engine(Protocol):
    """Minimises a loss of the terms over the masks with RMSProp.

    Rows are independent: a batch learned together equals each row alone.
    """

    @property
    def logits(self) -> Logits:
        """The learned scalars as they stand."""
        ...

    def step(self) -> Terms:
        """One iteration; the terms before it."""
        ...

    def learn(self, iterations: int, on_iteration: OnIteration = None) -> Terms:
        """Many iterations; the terms before each, of shape (iterations, rows).

        `on_iteration` is called after each; a GPU may still have to do it.
        """
        ...

    def readout(self) -> Readout:
        """The terms and linear maps at the masks as they stand."""
        ...

    def is_in_range(self, past: Terms) -> bool:
        """Whether the engine's precision could hold all that was met, up to the last read-out.

        `past` are the terms of its iterations.
        """
        ...


def learn_by_steps(
    step: Callable[[], Terms], output: Tensor, iterations: int, on_iteration: OnIteration
) -> Terms:
    """What an engine's `learn` does where iterations are steps and no more."""
    positive: list[Tensor] = []
    negative: list[Tensor] = []
    for _ in range(iterations):
        terms = step()
        positive.append(terms.positive)
        negative.append(terms.negative)
        if on_iteration is not None:
            on_iteration()
    nothing = output.new_zeros(0, *output.shape)
    return Terms(
        output,
        torch.stack(positive) if positive else nothing,
        torch.stack(negative) if negative else nothing,
    )
