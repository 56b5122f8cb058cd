"""What an engine does: learn the masks of one linear network, an iteration at a time."""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from dmbp.engine.terms import Readout, Terms

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
