"""What the masks are learned for: the paper's loss (Eq. 10) and its two ablations."""

from collections.abc import Mapping

from torch import Tensor

from dmbp.engine import Loss, Terms


def _all(terms: Terms) -> Tensor:
    return terms.negative - terms.positive + terms.nuisance.abs()


def _posneg(terms: Terms) -> Tensor:
    return terms.negative - terms.positive


def _pos(terms: Terms) -> Tensor:
    return -terms.positive


OBJECTIVES: Mapping[str, Loss] = {
    "all": _all,  # y⁻ − y⁺ + |y~|: the paper's DMBP
    "posneg": _posneg,  # y⁻ − y⁺: DMBP⁺⁻ of the ablation table
    "pos": _pos,  # −y⁺: DMBP⁺
}
