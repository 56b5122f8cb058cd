"""How close is close enough, and why."""

FLOAT64 = 1e-10
"""Two ways of computing the same number in double precision, through a few dozen layers."""

BATCH = 1e-6
"""A batch against its images alone: kernels may add in another order, and RMSProp divides by it."""

FLOAT32 = 1e-4
"""The exactness promised in single precision."""


def relative(found, expected) -> float:
    """The largest difference, relative to the largest expected magnitude."""
    return float((found - expected).detach().abs().max() / expected.detach().abs().max())
