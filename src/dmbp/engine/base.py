"""What every engine shares: the three terms, the loss over them, and the engine interface.

    y = y⁺ + y⁻ + y~                                 the terms of a score (Eq. 9)
    loss = a y⁺ + b y⁻ + c |y~|                      minimised over the masks, row by row
    ∂loss / ∂(y⁺, y⁻) = (a, b) ∓ c                   − if y~ ≥ 0, + if y~ < 0

An engine learns the masks of one linear network with RMSProp, and reads out the terms and the two
linear maps at the learned masks. `engine/select.py` chooses an engine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

RMSPROP_DECAY = 0.99
RMSPROP_EPSILON = 1e-8
"""PyTorch's defaults for RMSProp, `alpha` and `eps`, which every engine uses."""

Logits = Mapping[str, Tensor]
"""The learned scalars by site name; a mask is σ = sigmoid(logit)."""

OnIteration = Callable[[], None] | None
"""Called after each iteration; None for no callback."""


@dataclass(frozen=True)
class Terms:
    """The terms y = y⁺ + y⁻ + y~ of every row (Eq. 9).

    Each tensor has shape (rows,), or (iterations, rows) for a history. The nuisance term is the
    remainder, so the three always add up to the model's score. The last layer's own bias is not the
    output of a filter and carries no mask: it enters y⁺ and y⁻ alike, and y~ compensates for it.
    """

    output: Tensor
    positive: Tensor
    negative: Tensor

    @property
    def nuisance(self) -> Tensor:
        """The part of the score in neither stream: paths that mix positive and negative masks."""
        return self.output - self.positive - self.negative


@dataclass(frozen=True)
class Readout:
    """The terms, and the two linear maps ∇F⁺ and ∇F⁻ in the shape of the inputs."""

    terms: Terms
    positive_map: Tensor
    negative_map: Tensor


@dataclass(frozen=True)
class Loss:
    """A weighted sum of the terms: the weights a, b and c of the formula above."""

    positive: float
    negative: float
    nuisance: float

    def __call__(self, terms: Terms) -> Tensor:
        """Return the loss of every row, (rows,)."""
        streams = self.positive * terms.positive + self.negative * terms.negative
        return streams + self.nuisance * terms.nuisance.abs()

    def seeds(self, terms: Terms) -> Tensor:
        """Return the loss's gradient with respect to y⁺ and y⁻, (2, rows).

        At y~ = 0 it is the subgradient from above.
        """
        side = torch.where(terms.nuisance < 0, self.nuisance, -self.nuisance)
        return torch.stack([self.positive + side, self.negative + side])

    @property
    def largest_seed(self) -> float:
        """An upper bound on the magnitude of a seed."""
        return max(abs(self.positive), abs(self.negative)) + abs(self.nuisance)

    @property
    def touches_one_stream(self) -> bool:
        """Whether at most one of the two streams has a non-zero seed in each row."""
        sides = (self.nuisance, -self.nuisance)
        return all(self.positive == -side or self.negative == -side for side in sides)


class Engine(Protocol):
    """Minimises a loss over the masks with RMSProp, and reads out the terms and linear maps.

    Rows are independent: a batch learned together gives the same result as each row alone.
    """

    @property
    def logits(self) -> Logits:
        """The current value of the learned scalars."""
        ...

    def step(self) -> Terms:
        """Run one iteration and return the terms before it."""
        ...

    def learn(self, iterations: int, on_iteration: OnIteration = None) -> Terms:
        """Run `iterations` iterations and return the terms before each, (iterations, rows).

        `on_iteration` is called once each iteration is issued; a GPU may not have finished it.
        """
        ...

    def readout(self) -> Readout:
        """Return the terms and linear maps at the current masks."""
        ...

    def is_in_range(self, past: Terms) -> bool:
        """Return whether the engine's precision could represent every number up to the read-out.

        `past` are the terms that `learn` returned.
        """
        ...


def learn_by_steps(
    step: Callable[[], Terms], output: Tensor, iterations: int, on_iteration: OnIteration
) -> Terms:
    """Implement `Engine.learn` by calling `step` repeatedly."""
    positive: list[Tensor] = []
    negative: list[Tensor] = []
    for _ in range(iterations):
        terms = step()
        positive.append(terms.positive)
        negative.append(terms.negative)
        if on_iteration is not None:
            on_iteration()
    empty = output.new_zeros(0, *output.shape)
    return Terms(
        output,
        torch.stack(positive) if positive else empty,
        torch.stack(negative) if negative else empty,
    )
