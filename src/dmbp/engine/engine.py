"""What an engine does: learn the masks of one linear network, an iteration at a time."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from dmbp.engine.terms import Readout, Terms

Logits = Mapping[str, Tensor]
"""The learned scalars, by site: σ = sigmoid(logit)."""


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

    def readout(self) -> Readout:
        """The terms and linear maps at the masks as they stand."""
        ...

    def is_in_range(self, past: Sequence[Terms]) -> bool:
        """Whether the engine's precision could hold all that was met, up to the last read-out.

        `past` are the terms of its iterations.
        """
        ...
