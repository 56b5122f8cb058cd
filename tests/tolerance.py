"""Tolerances for comparing numbers, each with its reason."""

FLOAT64 = 1e-10
"""For two computations of the same number in double precision, through a few dozen layers."""

BATCH = 1e-6
"""For a batch against single images: kernels may add in another order, and RMSProp amplifies it."""

FLOAT32 = 1e-4
"""The exactness that is promised in single precision."""


def relative(found, expected) -> float:
    """Return the largest difference, relative to the largest expected magnitude."""
    return float((found - expected).detach().abs().max() / expected.detach().abs().max())
