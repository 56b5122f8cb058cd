"""What the model says about a photo without its strongest red or blue pixels, and in a control.

The preset "tested" has asked the model already; for other presets `remove_pixels` asks it now. The
picture, the report and the JSON file of `dmbp explain` take the answer from here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from dmbp.decompose import Decomposition
from dmbp.decompose.tested import moved_elsewhere, strongest
from dmbp.linear import OneTarget
from dmbp.metrics import Removal, removal
from dmbp.metrics.insertion import sum_of_channels
from dmbp.metrics.removal import SHARE
from dmbp.render import ColourTest, Outcome
from dmbp.render.colour_test import colour_tests
from dmbp.workflows.explained_target import ExplainedTarget
from dmbp.workflows.prediction import InputPrediction


@dataclass(frozen=True)
class PixelRemoval:
    """A target's outcomes with and without its strongest pixels, with probabilities if it has any.

    The probability is that of the target's class, also if it is explained rather than others.
    """

    test: ColourTest
    worth_for: float | None
    worth_against: float | None

    def record(self) -> dict[str, Any]:
        """Return all numbers for a JSON file; those of a colour that the map lacks are null."""
        numbers: dict[str, float | None] = {}
        for ending, outcome in {
            "": self.test.whole,
            "_without_positive": self.test.without_positive,
            "_without_negative": self.test.without_negative,
            "_without_control": self.test.without_control,
        }.items():
            numbers[f"score{ending}"] = None if outcome is None else outcome.score
            numbers[f"probability{ending}"] = None if outcome is None else outcome.probability
        return {
            "worth_for": self.worth_for,
            "worth_against": self.worth_against,
            "confirmed": not self.test.refuted,
            "removal": {"share": SHARE, "by": self.test.by, **numbers},
        }

    def shown_test(self, target: ExplainedTarget) -> ColourTest:
        """Return the test as pictures show it: a difference of classes has scores only."""
        if target.has_probability:
            return self.test
        whole, positive, negative, control = (
            None if outcome is None else Outcome(outcome.score)
            for outcome in (
                self.test.whole,
                self.test.without_positive,
                self.test.without_negative,
                self.test.without_control,
            )
        )
        assert whole is not None
        return replace(
            self.test,
            whole=whole,
            without_positive=positive,
            without_negative=negative,
            without_control=control,
        )


def remove_pixels(prediction: InputPrediction, decomposition: Decomposition) -> list[PixelRemoval]:
    """Return each target's outcomes, from the decomposition's test or from the model."""
    tested, targets = decomposition.tested, prediction.targets
    if tested is None:
        return [PixelRemoval(test, None, None) for test in _ask_model(prediction, decomposition)]
    tests = colour_tests(
        decomposition,
        [target.name for target in targets],
        activation=prediction.classifier.activation,
        likely=[target.likely for target in targets],
    )
    worths = zip(tested.worth_for.tolist(), tested.worth_against.tolist(), strict=True)
    return [
        PixelRemoval(test, *worth)
        for test, worth in zip(tests, worths, strict=True)
        if test is not None  # each has one, because the decomposition was tested
    ]


def _ask_model(prediction: InputPrediction, decomposition: Decomposition) -> list[ColourTest]:
    """Blur the strongest tenth of each colour's pixels, and the control's; run the model."""
    d, targets = decomposition, prediction.targets
    pixels = sum_of_channels(d.attribution)
    marked = strongest(pixels[:, 0] if pixels.dim() > 2 else pixels)
    elsewhere = moved_elsewhere(marked).view_as(pixels).to(d.inputs)
    module, activation = prediction.classifier.module, prediction.classifier.activation

    def run(asked: Sequence[OneTarget]) -> _Found:
        return _Found(
            removal(module, d.inputs, list(asked), d.attribution, activation=activation),
            removal(module, d.inputs, list(asked), elsewhere, share=None, activation=activation),
        )

    found = run([target.target for target in targets])
    of_class = found
    if any(target.likely is not target.target for target in targets):
        of_class = run([target.likely for target in targets])
    return [
        _test(target, found, of_class, row, is_blank=bool(d.is_blank[row]))
        for row, target in enumerate(targets)
    ]


@dataclass(frozen=True)
class _Found:
    """What removal found about the map's pixels, and about the control's."""

    colours: Removal
    control: Removal


def _test(
    target: ExplainedTarget, scores: _Found, of_class: _Found, row: int, *, is_blank: bool
) -> ColourTest:
    found, likely = scores.colours, of_class.colours

    def outcome(score: Tensor, probability: Tensor) -> Outcome:
        told = float(probability[row]) if target.curve.in_percent else None
        return Outcome(float(score[row]), told)

    has_positive = bool(found.positive_removed[row] > 0) and not is_blank
    has_negative = bool(found.negative_removed[row] > 0) and not is_blank
    positive = outcome(found.score_without_positive, likely.probability_without_positive)
    negative = outcome(found.score_without_negative, likely.probability_without_negative)
    control = outcome(
        scores.control.score_without_positive, of_class.control.probability_without_positive
    )
    refuted = [1] if has_positive and not found.red_true[row] else []
    if has_negative and found.claims_blue[row] and not found.blue_true[row]:
        refuted.append(-1)
    return ColourTest(
        target.name,
        outcome(found.score, likely.probability),
        positive if has_positive else None,
        negative if has_negative else None,
        control if has_positive else None,
        refuted=tuple(refuted),
        shares=(float(found.positive_removed[row]), float(found.negative_removed[row])),
    )
