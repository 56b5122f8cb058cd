"""Metrics: whether an attribution says what the model really uses."""

from dmbp.metrics.insertion import (
    area,
    complementary_insertion,
    deletion,
    deletion_curve,
    insertion,
    insertion_curve,
    pixel_ranks,
    replaced,
)
from dmbp.metrics.pointing_game import pointing_game
from dmbp.metrics.reinitialisation import rank_correlation, reinitialisation, reinitialised

__all__ = [
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
    "reinitialised",
    "replaced",
]
