"""The metrics that a benchmark can compute: what each is called, and which scores are better.

    >>> METRICS["deletion"].better, METRICS["ROAD"].axis
    ('low', 'ROAD: gap between both orders')

`dmbp.bench.scoring` has the function of each. This table imports nothing, so that a file of results
can be read quickly.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Better = Literal["high", "low", "zero"]

ROAD_PERCENTAGES = (10, 20, 30, 40, 50, 70, 90)
"""The percentages of pixels that ROAD removes, as in its paper."""


@dataclass(frozen=True)
class CurveSpec:
    """How a metric's curve is drawn.

    Args:
        title: The panel's title.
        across: The label of the horizontal axis.
        at: Where the points are, as fractions; None for as many equal steps as the plan says.
    """

    title: str
    across: str
    at: tuple[float, ...] | None = None


@dataclass(frozen=True)
class MetricSpec:
    """A row of the table.

    Args:
        axis: The label of an axis that shows scores.
        better: Which scores are better: "high", "low" or near "zero"; None if none is.
        curve: The curve behind the score, if there is one.
        needs: What a question must have to get a score: other "classes" on its photo, or a "region"
            of its class.
        optional: Why a question may have no score although it has what is needed.
    """

    axis: str
    better: Better | None = "high"
    curve: CurveSpec | None = None
    needs: Literal["classes", "region"] | None = None
    optional: str | None = None


WHY_NO_QUESTIONS = {
    "classes": "no photo shows two classes",
    "region": "no photo comes with boxes or masks",
}
"""Notes on metrics that apply to no question, by what they need."""

SUBSTRATES: Mapping[str, tuple[str, str, str]] = {
    "": ("", "the blurred photo", "taken out of the photo"),
    " zero": ("to zeros", "zeros", "set to zero"),
    " mean": ("to the mean colour", "the photo's mean colour", "given the photo's mean colour"),
}
"""The ending of a metric's name for each substrate, and how it is described."""


def _curves() -> Iterator[tuple[str, MetricSpec]]:
    for ending, (to, ground, removed) in SUBSTRATES.items():
        into = f", in{to}" if to else ""
        across = f"pixels put into {ground}, strongest first"
        yield (
            f"IM{ending}",
            MetricSpec(f"insertion score{into}", curve=CurveSpec("Insertion", across)),
        )
        after = f", {to}" if to else ""
        across = f"pixels {removed}, strongest first"
        yield (
            f"deletion{ending}",
            MetricSpec(f"deletion score{after}", "low", CurveSpec("Deletion", across)),
        )
        across = f"pixels {removed}, "
        yield (
            f"MoRF{ending}",
            MetricSpec(f"MoRF{after}", "low", CurveSpec("MoRF", across + "most relevant first")),
        )
        yield (
            f"LeRF{ending}",
            MetricSpec(f"LeRF{after}", curve=CurveSpec("LeRF", across + "least relevant first")),
        )
        yield f"gap{ending}", MetricSpec(f"LeRF − MoRF{after}")


def _road_curve(order: str) -> CurveSpec:
    at = tuple(percentage / 100 for percentage in ROAD_PERCENTAGES)
    return CurveSpec(f"ROAD, {order}", f"pixels imputed, {order} first", at)


SQUEEZED = 'which takes fit = "squeeze"'

METRICS: Mapping[str, MetricSpec] = {
    **dict(_curves()),
    "cIM": MetricSpec("insertion of the other classes", needs="classes"),
    "ROAD": MetricSpec("ROAD: gap between both orders"),
    "ROAD MoRF": MetricSpec("ROAD, MoRF", "low", _road_curve("most relevant")),
    "ROAD LeRF": MetricSpec("ROAD, LeRF", "high", _road_curve("least relevant")),
    "infidelity": MetricSpec("share of changes that maps do not predict", "low"),
    "max-sensitivity": MetricSpec("largest relative change of a map", "low"),
    "drop": MetricSpec("average drop", "low"),
    "gain": MetricSpec("average gain"),
    "increase": MetricSpec("share of photos that become more likely"),
    "sparseness": MetricSpec("sparseness (Gini index)", None),
    "pointing": MetricSpec("share of hits in the pointing game", needs="region", optional=SQUEEZED),
    "energy pointing": MetricSpec("share of mass in the boxes", needs="region", optional=SQUEEZED),
    "mass accuracy": MetricSpec("share of mass on the object", needs="region", optional=SQUEEZED),
    "rank accuracy": MetricSpec(
        "share of the strongest pixels on the object", needs="region", optional=SQUEEZED
    ),
    "red true": MetricSpec("share of maps whose red is true"),
    "blue claims": MetricSpec("share of maps that claim blue", None),
    "blue true": MetricSpec(
        "share of blue claims that are true", optional="because the map claims no blue"
    ),
    "reinitialisation": MetricSpec("rank correlation after re-initialisation", "zero"),
    "MPRT": MetricSpec("rank correlation, layers random from the last", "zero"),
    "MPRT bottom-up": MetricSpec("rank correlation, layers random from the first", "zero"),
    "sMPRT": MetricSpec("rank correlation of smoothed maps, layers random", "zero"),
    "random logit": MetricSpec("rank correlation with another class's map", "low"),
}
"""Every metric that a plan may name. MoRF is deletion, and LeRF insertion read from its end."""


def badness(metric: str, score: float) -> float | None:
    """Return a number that increases as a score gets worse, or None if no score is better.

    A metric that is not in the table counts as better when it is higher.
    """
    better = METRICS[metric].better if metric in METRICS else "high"
    if better is None:
        return None
    return {"high": -score, "low": score, "zero": abs(score)}[better]


def curve_points(metric: str, steps: int) -> int:
    """Return how many points a metric's curve has in a plan with so many steps."""
    spec = METRICS.get(metric)
    at = None if spec is None or spec.curve is None else spec.curve.at
    return steps + 1 if at is None else len(at)


def curve_fractions(metric: str, points: int) -> list[float]:
    """Return the fraction of pixels at each point of a metric's curve."""
    spec = METRICS.get(metric)
    at = None if spec is None or spec.curve is None else spec.curve.at
    return [k / max(1, points - 1) for k in range(points)] if at is None else list(at)
