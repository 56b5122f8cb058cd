"""Scores attributions: one function for each metric that a plan may name.

A function gets a batch of maps and returns a score for each, or None where the metric does not
apply. What several metrics need is computed once per batch: curves, images with removed pixels,
maps of models with random weights. If a metric raises an error, the batch is halved until the map
that causes it is found, and the other metrics are not affected.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from dmbp import metrics
from dmbp.baseline import Baseline
from dmbp.bench.failures import in_one_line, raise_if_device_is_lost
from dmbp.bench.units import PhotoTarget
from dmbp.data.photo import decode_photo
from dmbp.linear.model.runner import ModelRunner
from dmbp.metrics.insertion import CurveOptions, area
from dmbp.metrics.localisation import Regions
from dmbp.metrics.randomisation import Order, other_classes
from dmbp.models import Classifier

SCORED_AT_ONCE = 256
"""Masked images that a model is run on at once."""

INFIDELITY_SAMPLES = 32
SENSITIVITY_SAMPLES = 5
STAGES = 4
"""Stages of the cascades of random layers."""

SMOOTHED = 3
"""Noisy copies of a photo in sMPRT."""


@dataclass
class AttributionScores:
    """The scores of one attribution by metric, the curves of metrics that have one, and failures.

    `unscored` are the metrics that do not apply to it.
    """

    scores: dict[str, float] = field(default_factory=dict[str, float])
    curves: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    unscored: set[str] = field(default_factory=set[str])
    failures: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def failure(self) -> str | None:
        """Why metrics failed, as one line; None if none did."""
        if not self.failures:
            return None
        reasons = set(self.failures.values())
        if len(reasons) == 1 and not self.scores:
            return reasons.pop()
        return "; ".join(f"{name}: {reason}" for name, reason in self.failures.items())[:500]


Explain = Callable[[Tensor, Sequence[int]], Tensor]
"""Returns maps with one channel from inputs and classes."""


@dataclass(frozen=True)
class RandomModels:
    """Maps of models whose weights are random, with one method.

    Args:
        explain: Explains the model itself.
        reinitialised: Explains the model with its last layer re-initialised.
        stages: Yields a function for each stage of a cascade, to be called before the next is
            asked for.
    """

    explain: Explain
    reinitialised: Explain
    stages: Callable[[Order], Iterator[Explain]]


@dataclass(frozen=True)
class AttributionBatch:
    """The inputs and attributions of a batch of questions, on one device.

    Args:
        targets: The questions.
        inputs: The photos, as the model sees them.
        maps: The attributions, summed over channels: (images, 1, height, width).
        classifier: The model.
        scorer: What runs the masked images of metrics: the model itself, or faster.
        steps: Steps of curves.
        random: Explains other photos and other models with the same method.
    """

    targets: Sequence[PhotoTarget]
    inputs: Tensor
    maps: Tensor
    classifier: Classifier
    scorer: nn.Module
    steps: int
    random: RandomModels

    def pick(self, indices: Sequence[int]) -> "AttributionBatch":
        """Return some of the attributions."""
        chosen = list(indices)
        return replace(
            self,
            targets=[self.targets[k] for k in chosen],
            inputs=self.inputs[chosen],
            maps=self.maps[chosen],
        )

    @property
    def classes(self) -> list[int]:
        """The class that each question is about."""
        return [target.index for target in self.targets]

    @property
    def about(self) -> tuple[nn.Module, Tensor, list[int], Tensor]:
        """What metrics of masked images take first."""
        return self.scorer, self.inputs, self.classes, self.maps

    @property
    def options(self) -> CurveOptions:
        """The options of all metrics that compute a curve."""
        return {
            "steps": self.steps,
            "activation": self.classifier.activation,
            "internal_batch_size": SCORED_AT_ONCE,
        }

    @cached_property
    def _curves(self) -> dict[tuple[bool, str], Tensor]:
        return {}

    def curve(self, substrate: str, *, removing: bool) -> Tensor:
        """Return the insertion or deletion curves, which several metrics share."""
        if (removing, substrate) not in self._curves:
            make = metrics.deletion_curve if removing else metrics.insertion_curve
            options: CurveOptions = {**self.options, "substrate": SUBSTRATES[substrate]}
            self._curves[removing, substrate] = make(*self.about, **options)
        return self._curves[removing, substrate]

    @cached_property
    def road(self) -> metrics.Perturbation:
        """ROAD's curves, which three metrics share."""
        return metrics.road(
            *self.about,
            activation=self.classifier.activation,
            internal_batch_size=SCORED_AT_ONCE,
        )

    @cached_property
    def confidence(self) -> metrics.Confidence:
        """The probabilities of what maps show, which three metrics share."""
        return metrics.confidence(*self.about, activation=self.classifier.activation)

    @cached_property
    def removal(self) -> metrics.Removal:
        """The scores without the strongest pixels, which three metrics share.

        They are computed in full precision: fewer digits would round small changes away.
        """
        return metrics.removal(
            self.classifier.module,
            self.inputs,
            self.classes,
            self.maps,
            activation=self.classifier.activation,
            internal_batch_size=SCORED_AT_ONCE,
        )


SUBSTRATES: Mapping[str, Baseline] = {"": "blur", " zero": "zero", " mean": "mean"}
"""The substrate that the ending of a metric's name stands for."""

Scores = Tensor | list[float | None]
"""A score for each attribution; NaN or None where the metric does not apply."""

Scorer = Callable[[AttributionBatch], tuple[Scores, Tensor | None]]
"""Returns the scores of a batch, and their curves if the metric has any."""


def score(batch: AttributionBatch, names: Sequence[str]) -> list[AttributionScores]:
    """Return each attribution's scores."""
    results = [AttributionScores() for _ in batch.targets]
    for name in names:
        _score(name, batch, results)
    return results


def _score(name: str, batch: AttributionBatch, results: Sequence[AttributionScores]) -> None:
    """Add a metric's scores; if it fails, halve the batch until the failing map is found."""
    try:
        scores, curves = SCORERS[name](batch)
    except Exception as error:  # a user's model may raise anything
        raise_if_device_is_lost(error)
        if len(results) == 1:
            results[0].failures[name] = in_one_line(error)
            return
        half = len(results) // 2
        for start, end in ((0, half), (half, len(results))):
            _score(name, batch.pick(range(start, end)), results[start:end])
        return
    listed = scores.tolist() if isinstance(scores, Tensor) else scores
    for k, (result, value) in enumerate(zip(results, listed, strict=True)):
        if value is None or math.isnan(value):
            result.unscored.add(name)
            continue
        result.scores[name] = float(value)
        if curves is not None:
            result.curves[name] = [round(point, 6) for point in curves[k].tolist()]


def _area_of(curve: Callable[[AttributionBatch], Tensor]) -> Scorer:
    def scorer(batch: AttributionBatch) -> tuple[Scores, Tensor]:
        found = curve(batch)
        return area(found), found

    return scorer


def _curve_scorers() -> Iterator[tuple[str, Scorer]]:
    """Yield the metrics of each substrate, which share two curves."""

    def inserted(batch: AttributionBatch, ending: str) -> Tensor:
        return batch.curve(ending, removing=False)

    def deleted(batch: AttributionBatch, ending: str) -> Tensor:
        return batch.curve(ending, removing=True)

    for ending in SUBSTRATES:
        yield f"IM{ending}", _area_of(lambda batch, s=ending: inserted(batch, s))
        yield f"deletion{ending}", _area_of(lambda batch, s=ending: deleted(batch, s))
        yield f"MoRF{ending}", _area_of(lambda batch, s=ending: deleted(batch, s))
        yield f"LeRF{ending}", _area_of(lambda batch, s=ending: inserted(batch, s).flip(1))
        yield (
            f"gap{ending}",
            lambda batch, s=ending: (area(inserted(batch, s)) - area(deleted(batch, s)), None),
        )


def _complementary(batch: AttributionBatch) -> tuple[Scores, None]:
    """Score the questions whose photo also shows another class."""
    scored = [k for k, target in enumerate(batch.targets) if target.others]
    found: list[float | None] = [None] * len(batch.targets)
    if scored:
        values = metrics.complementary_insertion(
            batch.scorer,
            batch.inputs[scored],
            [batch.targets[k].others for k in scored],
            batch.maps[scored],
            **batch.options,
        )
        for k, value in zip(scored, values.tolist(), strict=True):
            found[k] = value
    return found, None


def _infidelity(batch: AttributionBatch) -> tuple[Scores, None]:
    found = metrics.infidelity(
        *batch.about,
        samples=INFIDELITY_SAMPLES,
        relative=True,
        internal_batch_size=SCORED_AT_ONCE,
    )
    return found, None


def _sensitivity(batch: AttributionBatch) -> tuple[Scores, None]:
    def explain(inputs: Any, target: Any) -> Any:
        images = inputs[0] if isinstance(inputs, tuple) else inputs
        classes = torch.as_tensor(target).flatten().tolist()
        return (batch.random.explain(images, classes),)

    classes = torch.tensor(batch.classes, device=batch.inputs.device)
    found = metrics.max_sensitivity(explain, batch.inputs, classes, samples=SENSITIVITY_SAMPLES)
    return found, None


def _localisation(measure: Callable[[Tensor, Regions], Tensor]) -> Scorer:
    """Return a scorer of the questions with boxes or a mask, if photos are squeezed like them."""

    def scorer(batch: AttributionBatch) -> tuple[Scores, None]:
        found: list[float | None] = [None] * len(batch.targets)
        if batch.classifier.preprocessing.fit == "squeeze":
            size = batch.maps.shape[-2], batch.maps.shape[-1]
            for k, target in enumerate(batch.targets):
                regions = _regions(target, size)
                if regions is not None:
                    found[k] = float(measure(batch.maps[k : k + 1], regions))
        return found, None

    return scorer


def _regions(target: PhotoTarget, size: tuple[int, int]) -> Regions | None:
    """Return where a question's class is in a squeezed photo, or None if nobody knows."""
    if target.mask is not None:
        picture = decode_photo(target.mask).resize((size[1], size[0]), resample=0)
        return torch.from_numpy(numpy.array(picture)).amax(2)[None] > 0
    annotation = target.sample.annotation
    return None if annotation is None else [annotation.boxes(str(target.label), size=size)]


def _pointing(maps: Tensor, regions: Regions) -> Tensor:
    if isinstance(regions, Tensor):  # there is no tolerance around masks
        strongest = metrics.pixel_ranks(maps, maps).flatten(1).argmin(1).cpu()
        return regions.flatten(1)[0, strongest]
    return metrics.pointing_game(maps.cpu(), regions)


def _reinitialisation(batch: AttributionBatch) -> tuple[Scores, None]:
    maps = batch.random.reinitialised(batch.inputs, batch.classes)
    return metrics.rank_correlation(batch.maps, maps), None


def _cascade(order: Order, *, smoothed: bool = False) -> Scorer:
    def scorer(batch: AttributionBatch) -> tuple[Scores, None]:
        copies = metrics.noisy_copies(batch.inputs, SMOOTHED) if smoothed else [batch.inputs]

        def mean_map(explain: Explain) -> Tensor:
            return torch.stack([explain(images, batch.classes) for images in copies]).mean(0)

        before = mean_map(batch.random.explain) if smoothed else batch.maps
        found = [
            metrics.rank_correlation(before, mean_map(explain))
            for explain in batch.random.stages(order)
        ]
        return torch.stack(found).mean(0), None

    return scorer


def _random_logit(batch: AttributionBatch) -> tuple[Scores, None]:
    outputs = ModelRunner(batch.classifier.module).outputs(batch.inputs[:1])
    others = other_classes(batch.classes, outputs.shape[1])
    return metrics.rank_correlation(batch.maps, batch.random.explain(batch.inputs, others)), None


SCORERS: Mapping[str, Scorer] = {
    **dict(_curve_scorers()),
    "cIM": _complementary,
    "ROAD": lambda batch: (batch.road.gap, None),
    "ROAD MoRF": lambda batch: (batch.road.morf, batch.road.morf_curve),
    "ROAD LeRF": lambda batch: (batch.road.lerf, batch.road.lerf_curve),
    "infidelity": _infidelity,
    "max-sensitivity": _sensitivity,
    "drop": lambda batch: (batch.confidence.drop, None),
    "gain": lambda batch: (batch.confidence.gain, None),
    "increase": lambda batch: (batch.confidence.increase, None),
    "sparseness": lambda batch: (metrics.sparseness(batch.maps), None),
    "pointing": _localisation(_pointing),
    "energy pointing": _localisation(metrics.energy_pointing_game),
    "mass accuracy": _localisation(metrics.mass_accuracy),
    "rank accuracy": _localisation(metrics.rank_accuracy),
    "red true": lambda batch: (batch.removal.red_true, None),
    "blue claims": lambda batch: (batch.removal.claims_blue, None),
    "blue true": lambda batch: (batch.removal.blue_true, None),
    "reinitialisation": _reinitialisation,
    "MPRT": _cascade("top_down"),
    "MPRT bottom-up": _cascade("bottom_up"),
    "sMPRT": _cascade("bottom_up", smoothed=True),
    "random logit": _random_logit,
}
"""The function of each metric of `dmbp.metric_table`."""
