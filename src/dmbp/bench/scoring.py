"""Scores attributions: one function for each metric that a plan may name."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from dmbp import metrics
from dmbp.baseline import Baseline
from dmbp.bench.units import PhotoTarget
from dmbp.metrics.insertion import CurveOptions, area
from dmbp.models import Classifier

SCORED_AT_ONCE = 256
"""Masked images that a model is run on at once."""


@dataclass
class AttributionScores:
    """The scores of one attribution by metric, and the curves of metrics that have one."""

    scores: dict[str, float] = field(default_factory=dict[str, float])
    curves: dict[str, list[float]] = field(default_factory=dict[str, list[float]])


@dataclass(frozen=True)
class AttributionBatch:
    """The inputs and attributions (`maps`) of a batch of questions, on one device.

    `reinitialised_maps` computes attributions of the model with its last layer re-initialised.
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
        """The options of all metrics that compute a curve."""
        return {
            "steps": self.steps,
            "activation": self.classifier.activation,
            "internal_batch_size": SCORED_AT_ONCE,
        }

    @cached_property
    def removal(self) -> metrics.Removal:
        """The scores without the strongest pixels, which three metrics share."""
        return metrics.removal(
            self.classifier.module,
            self.inputs,
            self.classes,
            self.maps,
            activation=self.classifier.activation,
            internal_batch_size=SCORED_AT_ONCE,
        )


def score(batch: AttributionBatch, names: Sequence[str]) -> list[AttributionScores]:
    """Return each attribution's scores; a metric that does not apply to a question is left out."""
    results = [AttributionScores() for _ in batch.targets]
    for name in names:
        SCORERS[name](name, batch, results)
    return results


CURVES: Mapping[str, tuple[Callable[..., Tensor], Baseline]] = {
    "IM": (metrics.insertion_curve, "blur"),
    "IM zero": (metrics.insertion_curve, "zero"),
    "IM mean": (metrics.insertion_curve, "mean"),
    "deletion": (metrics.deletion_curve, "blur"),
    "deletion zero": (metrics.deletion_curve, "zero"),
    "deletion mean": (metrics.deletion_curve, "mean"),
}
"""The function and the substrate of each metric that has a curve."""


def _score_curve(name: str, batch: AttributionBatch, results: list[AttributionScores]) -> None:
    make_curves, substrate = CURVES[name]
    options: CurveOptions = {**batch.options, "substrate": substrate}
    curves = make_curves(
        batch.classifier.module, batch.inputs, batch.classes, batch.maps, **options
    )
    areas = area(curves).tolist()
    for result, curve, value in zip(results, curves.tolist(), areas, strict=True):
        result.scores[name], result.curves[name] = value, [round(point, 6) for point in curve]


def _score_complementary(
    name: str, batch: AttributionBatch, results: list[AttributionScores]
) -> None:
    """Score the questions whose photo also shows another class."""
    scored = [k for k, target in enumerate(batch.targets) if target.others]
    if not scored:
        return
    values = metrics.complementary_insertion(
        batch.classifier.module,
        batch.inputs[scored],
        [batch.targets[k].others for k in scored],
        batch.maps[scored],
        **batch.options,
    )
    for k, value in zip(scored, values.tolist(), strict=True):
        results[k].scores[name] = value


def _score_pointing(name: str, batch: AttributionBatch, results: list[AttributionScores]) -> None:
    """Score the questions whose photo has boxes, if photos are squeezed like the boxes."""
    if batch.classifier.preprocessing.fit != "squeeze":
        return
    for k, target in enumerate(batch.targets):
        if target.sample.annotation is not None:
            size = batch.maps.shape[-2], batch.maps.shape[-1]
            boxes = target.sample.annotation.boxes(str(target.label), size=size)
            hit = metrics.pointing_game(batch.maps[k : k + 1].cpu(), [boxes])
            results[k].scores[name] = float(hit)


def _score_removal(name: str, batch: AttributionBatch, results: list[AttributionScores]) -> None:
    """Score every question; "blue true" only those whose map claims blue."""
    removal = batch.removal
    values = {
        "red true": removal.red_true,
        "blue claims": removal.claims_blue,
        "blue true": removal.blue_true,
    }[name]
    for result, value in zip(results, values.tolist(), strict=True):
        if not math.isnan(value):
            result.scores[name] = value


def _score_reinitialisation(
    name: str, batch: AttributionBatch, results: list[AttributionScores]
) -> None:
    values = metrics.rank_correlation(batch.maps, batch.reinitialised_maps())
    for result, value in zip(results, values.tolist(), strict=True):
        result.scores[name] = value


SCORERS: Mapping[str, Callable[[str, AttributionBatch, list[AttributionScores]], None]] = {
    **dict.fromkeys(CURVES, _score_curve),
    "cIM": _score_complementary,
    "pointing": _score_pointing,
    "red true": _score_removal,
    "blue claims": _score_removal,
    "blue true": _score_removal,
    "reinitialisation": _score_reinitialisation,
}
