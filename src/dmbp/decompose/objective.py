"""What the masks are learned for: the paper's loss (Eq. 10) and its two ablations."""

from collections.abc import Mapping

from dmbp.engine import Loss

OBJECTIVES: Mapping[str, Loss] = {
    "all": Loss(positive=-1, negative=1, nuisance=1),  # y⁻ − y⁺ + |y~|: the paper's DMBP
    "posneg": Loss(positive=-1, negative=1, nuisance=0),  # DMBP⁺⁻ of the ablation table
    "pos": Loss(positive=-1, negative=0, nuisance=0),  # DMBP⁺
}
