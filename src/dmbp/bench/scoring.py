"""How maps are scored: a function for each metric that a plan may name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from dmbp import metrics
from dmbp.bench.questions import Asked
from dmbp.metrics.insertion import CurveOptions, area
from dmbp.models import Classifier

SCORED_AT_ONCE = 256


@dataclass
class Score:
    """A map's scores by metric, and the curves of those that have one."""

    scores: dict[str, float] = field(default_factory=dict)
    curves: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Maps:
    """The maps of some questions, on one device; `forgotten` makes those of a forgetful model."""

    asked: Sequence[Asked]
    inputs: Tensor
    maps: Tensor
    classifier: Classifier
    steps: int
    forgotten: Callable[[], Tensor]

    @property
    def target(self) -> list[int]:
        """The class asked about, for each."""
        return [one.index for one in self.asked]

    @property
    def options(self) -> CurveOptions:
        """How curves are made."""
        return {
            "steps": self.steps,
            "activation": self.classifier.activation,
            "internal_batch_size": SCORED_AT_ONCE,
        }


def scores_of(given: Maps, names: Sequence[str]) -> list[Score]:
    """Each map's scores by the metrics of these names; some do not apply to some questions."""
    found = [Score() for _ in given.asked]
    for name in names:
        SCORERS[name](name, given, found)
    return found


def _curve(name: str, given: Maps, found: list[Score]) -> None:
    curve = {"IM": metrics.insertion_curve, "deletion": metrics.deletion_curve}[name]
    lines = curve(given.classifier.module, given.inputs, given.target, given.maps, **given.options)
    for score, line, under in zip(found, lines.tolist(), area(lines).tolist(), strict=True):
        score.scores[name], score.curves[name] = under, [round(point, 6) for point in line]


def _complementary(name: str, given: Maps, found: list[Score]) -> None:
    """Where there is another class on the photo."""
    several = [k for k, one in enumerate(given.asked) if one.others]
    if not several:
        return
    others = [given.asked[k].others for k in several]
    values = metrics.complementary_insertion(
        given.classifier.module,
        given.inputs[several],
        others,
        given.maps[several],
        **given.options,
    )
    for k, value in zip(several, values.tolist(), strict=True):
        found[k].scores[name] = value


def _pointing(name: str, given: Maps, found: list[Score]) -> None:
    """Where boxes are known and the photo is squeezed."""
    if given.classifier.preprocessing.fit != "squeeze":
        return
    for k, one in enumerate(given.asked):
        if one.sample.annotation is not None:
            boxes = one.sample.annotation.boxes(str(one.label), side=given.maps.shape[-1])
            hit = metrics.pointing_game(given.maps[k : k + 1].cpu(), [boxes])
            found[k].scores[name] = float(hit)


def _reinitialisation(name: str, given: Maps, found: list[Score]) -> None:
    values = metrics.rank_correlation(given.maps, given.forgotten())
    for score, value in zip(found, values.tolist(), strict=True):
        score.scores[name] = value


SCORERS: Mapping[str, Callable[[str, Maps, list[Score]], None]] = {
    "IM": _curve,
    "cIM": _complementary,
    "deletion": _curve,
    "pointing": _pointing,
    "reinitialisation": _reinitialisation,
}
