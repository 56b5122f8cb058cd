"""Metrics that measure whether an attribution map shows what the model really uses.

    insertion, deletion          how fast the class's probability rises or falls as the strongest
                                 pixels are inserted or deleted
    complementary_insertion      whether the pixels that speak against a class show other classes
    removal                      whether the score falls without the strongest positive pixels, and
                                 rises without the strongest negative ones
    pointing_game                whether the strongest pixel lies on the object
    reinitialisation             whether the map changes once the model's last layer is random

    >>> scores = dmbp.metrics.insertion(model, images, 3, torch.randn(images.shape))
    >>> scores.shape                                       # one number for each image
    torch.Size([1])

Attribution maps are tensors of shape (images, channels, height, width); one channel is enough.
"""

import warnings
from typing import Any

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
from dmbp.metrics.pointing_game import pointing_game
from dmbp.metrics.reinitialisation import (
    rank_correlation,
    reinitialisation,
    with_reinitialised_layer,
)
from dmbp.metrics.removal import Removal, removal

__all__ = [
    "Removal",
    "area",
    "complementary_insertion",
    "deletion",
    "deletion_curve",
    "insertion",
    "insertion_curve",
    "pixel_ranks",
    "pointing_game",
    "rank_correlation",
    "reinitialisation",
    "removal",
    "replace_pixels",
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
