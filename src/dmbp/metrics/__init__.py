"""Metrics that measure whether an attribution map shows what the model really uses.

    insertion, deletion          how fast the class's probability rises or falls as the strongest
                                 pixels are inserted or deleted
    perturbation, road           the same in both orders: MoRF, LeRF and their gap; removed pixels
                                 are imputed from their surroundings
    complementary_insertion      whether the pixels that speak against a class show other classes
    removal                      whether the score falls without the strongest positive pixels, and
                                 rises without the strongest negative ones
    infidelity                   whether a map's sums predict how the score changes
    confidence                   average drop, gain and increase: how likely what the map shows is
    max_sensitivity              how much the map changes when the image changes by little
    pointing_game                whether the strongest pixel lies on the object
    mass_accuracy, rank_accuracy, energy_pointing_game
                                 how much of the map lies on the object
    sparseness                   whether the map concentrates on few pixels
    reinitialisation             whether the map changes once the model's last layer is random
    cascade                      the same for one layer after the other (MPRT and smooth MPRT)
    random_logit                 whether the map of another class is another map

    >>> scores = dmbp.metrics.insertion(model, images, 3, torch.randn(images.shape))
    >>> scores.shape                                       # one number for each image
    torch.Size([1])

Attribution maps are tensors of shape (images, channels, height, width); one channel is enough.
"""

import warnings
from typing import Any

from dmbp.metrics.faithfulness import Confidence, confidence, infidelity
from dmbp.metrics.imputation import linear_imputation
from dmbp.metrics.insertion import (
    area,
    complementary_insertion,
    deletion,
    deletion_curve,
    insertion,
    insertion_curve,
    pixel_ranks,
    replace_pixels,
)
from dmbp.metrics.localisation import energy_pointing_game, mass_accuracy, rank_accuracy
from dmbp.metrics.perturbation import Perturbation, perturbation, road
from dmbp.metrics.pointing_game import pointing_game
from dmbp.metrics.randomisation import Cascade, cascade, noisy_copies, random_logit
from dmbp.metrics.reinitialisation import (
    rank_correlation,
    reinitialisation,
    with_reinitialised_layer,
)
from dmbp.metrics.removal import Removal, removal
from dmbp.metrics.sensitivity import max_sensitivity
from dmbp.metrics.sparseness import sparseness
from dmbp.metrics.substrates import remove_pixels

__all__ = [
    "Cascade",
    "Confidence",
    "Perturbation",
    "Removal",
    "area",
    "cascade",
    "complementary_insertion",
    "confidence",
    "deletion",
    "deletion_curve",
    "energy_pointing_game",
    "infidelity",
    "insertion",
    "insertion_curve",
    "linear_imputation",
    "mass_accuracy",
    "max_sensitivity",
    "noisy_copies",
    "perturbation",
    "pixel_ranks",
    "pointing_game",
    "random_logit",
    "rank_accuracy",
    "rank_correlation",
    "reinitialisation",
    "removal",
    "remove_pixels",
    "replace_pixels",
    "road",
    "sparseness",
    "with_reinitialised_layer",
]

# Old names still work for one release.
_OLD_NAMES = {"reinitialised": with_reinitialised_layer, "replaced": replace_pixels}


def __getattr__(name: str) -> Any:
    if name not in _OLD_NAMES:
        raise AttributeError(f"module 'dmbp.metrics' has no attribute {name!r}")
    renamed = _OLD_NAMES[name]
    warnings.warn(
        f"dmbp.metrics.{name} is now dmbp.metrics.{renamed.__name__}; the old name will be removed",
        DeprecationWarning,
        stacklevel=2,
    )
    return renamed
