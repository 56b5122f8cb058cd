"""How attributions are scored: a function for each metric that a plan may name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from dmbp import metrics
from dmbp.bench.units import PhotoTarget
from dmbp.metrics.insertion import CurveOptions, area
from dmbp.models import Classifier

SCORED_AT_ONCE = 256


@dataclass
class AttributionScores:
    """The scores of one attribution by metric, and the curves of the metrics that have one."""

    scores: dict[str, float] = field(default_factory=dict[str, float])
    curves: dict[str, list[float]] = field(default_factory=dict[str, list[float]])


@dataclass(frozen=True)
class AttributionBatch:
    """Attributions of some questions, on one device.

    `reinitialised_maps` computes those of the model with its last layer re-initialised.
    """

    targets: Sequence[PhotoTarget]
    inputs: Tensor
    maps: Tensor
    classifier: Classifier
    steps: int
    reinitialised_maps: Callable[[], Tensor]

    @property
    def classes(self) -> list[int]:
        """The class that each question is about."""
        return [target.index for target in self.targets]

    @property
    def options(self) -> CurveOptions:
        """How curves are computed."""
        return {
            "steps": self.steps,
            "activation": self.classifier.activation,
            "internal_batch_size": SCORED_AT_ONCE,
        }


def score(batch: AttributionBatch, names: Sequence[str]) -> list[AttributionScores]:
    """Return each attribution's scores; a metric that does not apply to a question is left out."""
    found = [AttributionScores() for _ in batch.targets]
    for name in names:
        SCORERS[name](name, batch, found)
    return found


def _score_curve(name: str, batch: AttributionBatch, found: list[AttributionScores]) -> None:
    make_curves = {"IM": metrics.insertion_curve, "deletion": metrics.deletion_curve}[name]
    module = batch.classifier.module
    curves = make_curves(module, batch.inputs, batch.classes, batch.maps, **batch.options)
    for own, curve, under in zip(found, curves.tolist(), area(curves).tolist(), strict=True):
        own.scores[name], own.curves[name] = under, [round(point, 6) for point in curve]


def _score_complementary(
    name: str, batch: AttributionBatch, found: list[AttributionScores]
) -> None:
    """Score the questions whose photo shows another class, too."""
    several = [k for k, target in enumerate(batch.targets) if target.others]
    if not several:
        return
    values = metrics.complementary_insertion(
        batch.classifier.module,
        batch.inputs[several],
        [batch.targets[k].others for k in several],
        batch.maps[several],
        **batch.options,
    )
    for k, value in zip(several, values.tolist(), strict=True):
        found[k].scores[name] = value


def _score_pointing(name: str, batch: AttributionBatch, found: list[AttributionScores]) -> None:
    """Score the questions whose photo has boxes, if photos are squeezed as the boxes are."""
    if batch.classifier.preprocessing.fit != "squeeze":
        return
    for k, target in enumerate(batch.targets):
        if target.sample.annotation is not None:
            boxes = target.sample.annotation.boxes(str(target.label), side=batch.maps.shape[-1])
            hit = metrics.pointing_game(batch.maps[k : k + 1].cpu(), [boxes])
            found[k].scores[name] = float(hit)


def _score_reinitialisation(
    name: str, batch: AttributionBatch, found: list[AttributionScores]
) -> None:
    values = metrics.rank_correlation(batch.maps, batch.reinitialised_maps())
    for own, value in zip(found, values.tolist(), strict=True):
        own.scores[name] = value


SCORERS: Mapping[str, Callable[[str, AttributionBatch, list[AttributionScores]], None]] = {
    "IM": _score_curve,
    "cIM": _score_complementary,
    "deletion": _score_curve,
    "pointing": _score_pointing,
    "reinitialisation": _score_reinitialisation,
}
