"""Which of some scores are the best, by what is good in their metric.

>>> marks("IM", {"GC": 0.5, "DMBP": 0.7, "Grad": 0.1})
{'GC': 1, 'DMBP': 2}
"""

from collections.abc import Callable, Mapping

BADNESS: Mapping[str, Callable[[float], float]] = {
    "deletion": lambda score: score,
    "reinitialisation": abs,  # a map that depends on what was learned does not correlate
}
"""Metrics in which less is better; of all others, more is."""


def marks(metric: str, scores: Mapping[str, float], *, digits: int = 3) -> dict[str, int]:
    """2 for the best as it is printed, 1 for the second; those that are equal share."""
    badness = BADNESS.get(metric, lambda score: -score)
    printed = {label: badness(round(score, digits)) for label, score in scores.items()}
    order = sorted(set(printed.values()))[:2]
    return {label: 2 - order.index(bad) for label, bad in printed.items() if bad in order}
