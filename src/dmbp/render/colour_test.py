r"""What a score becomes without a map's strongest pixels of each colour, in numbers and in words.

    >>> whole, at_random = Outcome(1.4, 0.80), Outcome(1.3, 0.79)
    >>> cat = ColourTest("cat", whole, Outcome(-2.1, 0.11), Outcome(4.6, 0.99), at_random)
    >>> palette = dmbp.render.PALETTES["red-blue"]
    >>> import textwrap
    >>> print(textwrap.fill(cat.sentence(palette), 80))
    Without the tenth of the photo that is marked strongest in red, cat falls from
    80% to 11% (the same pattern elsewhere: 79%). Without the tenth marked strongest
    in blue, it rises to 99%.
    >>> cat.title(1, palette)
    'without pixels marked red\ncat 80% → 11%'

The control is the same pattern of pixels elsewhere: without it, nobody could tell what the marked
pixels do from what any change of the photo does. `colour_tests` reads these numbers from a tested
`Decomposition`. Pictures, charts and the report draw them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from dmbp.decompose import Decomposition
from dmbp.decompose.tested import SHARE, strongest
from dmbp.devices import in_float64
from dmbp.linear.named_target import BoundTarget
from dmbp.linear.targets import OneTarget
from dmbp.probabilities import Activation, activation_function
from dmbp.render.colour import Palette

SMALL_CHANGE = 0.05
"""Probabilities that change less than this come with scores."""

FELT = 0.1
"""If the score changes by less than this share of it, too, the class hardly changes."""

AS_FAR = 0.9
"""The control does the same as red if the score falls by this share of its fall without red."""

LONGEST_NAME = 24
"""The most letters of a name that a line of a title has room for beside its numbers."""

SCORE_BEFORE_PERCENTAGE = "score: the model's output before it becomes a percentage"
SCORE_ALONE = "score: the number that is asked about"
INDEPENDENT_CLASSES = "classes are judged independently, so percentages need not add up to 100"


@dataclass(frozen=True)
class InputWords:
    """The words for an input, and for what is removed from it: at first, and when said again.

    `{}` is a colour. `few`, with `{share}`, is said if less than a tenth has the colour.
    """

    whole: str
    entries: str
    marked: str
    again: str
    few: str | None = None


PHOTO = InputWords(
    "photo",
    "pixels",
    "the tenth of the photo that is marked strongest in {}",
    "the tenth marked strongest in {}",
    few="the {share} of the photo that is marked {}",
)
IMAGE_WORDS = replace(
    PHOTO,
    whole="image",
    marked="the tenth of the image that is marked strongest in {}",
    few="the {share} of the image that is marked {}",
)
VOLUME_WORDS = replace(
    PHOTO,
    whole="volume",
    entries="voxels",
    marked="the tenth of the volume that is marked strongest in {}",
    few="the {share} of the volume that is marked {}",
)
SIGNAL_WORDS = InputWords(
    "signal", "moments", "the moments marked strongest in {}", "those marked strongest in {}"
)
VECTOR_WORDS = InputWords(
    "input", "features", "the features marked strongest in {}", "those marked strongest in {}"
)


@dataclass(frozen=True)
class Outcome:
    """The score of an input, and its probability; None if the score has none."""

    score: float
    probability: float | None = None


@dataclass(frozen=True)
class ColourTest:
    """A target's outcome with and without the strongest pixels of each colour.

    Attributes:
        name: What is explained, such as a class's name.
        whole: The outcome of the whole input.
        without_positive: The outcome without the strongest pixels that speak for the target; None
            if there are none.
        without_negative: The same for pixels that speak against it.
        without_control: The control: the outcome without the pattern of pixels that is removed for
            `without_positive`, moved elsewhere; None if it is not known.
        refuted: The signs, 1 or −1, of the colours that the model does not confirm.
        by: What takes the place of removed pixels.
        removals: By how many kinds of removal colours were tested.
        shares: The share of pixels removed for each colour, positive first.
        decimals: How many decimals percentages have; None finds as many as this test needs.
    """

    name: str
    whole: Outcome
    without_positive: Outcome | None
    without_negative: Outcome | None
    without_control: Outcome | None = None
    refuted: tuple[int, ...] = ()
    by: str = "blur"
    removals: int = 1
    shares: tuple[float, float] = (SHARE, SHARE)
    decimals: int | None = None

    def without(self, sign: Sign) -> Outcome | None:
        """Return the outcome without the pixels of a sign; 0 is the control."""
        return {1: self.without_positive, -1: self.without_negative, 0: self.without_control}[sign]

    @property
    def shown(self) -> list[Sign]:
        """Which changed photos a picture shows: one for each colour, and the control if one lacks.

        Without red pixels there is nothing to compare with the control.
        """
        shown: list[Sign] = [sign for sign in COLOUR_SIGNS if self.without(sign) is not None]
        is_alone = shown == [1] and self.without_control is not None
        return [1, 0] if is_alone else shown

    def has_few(self, sign: Sign) -> bool:
        """Whether less than a tenth of the pixels have a colour, so that all were removed."""
        return round(self.shares[sign < 0], 2) < SHARE

    @property
    def shows_scores(self) -> bool:
        """Whether words or titles contain a score."""
        if self.whole.probability is None:
            return bool(self._outcomes)
        return any(self._shows_score(sign) for sign in COLOUR_SIGNS)

    @property
    def needed_decimals(self) -> int:
        """How many decimals tell the percentages of this test apart, 0 or 1.

        The control may well be equal to the whole input.
        """
        changes = [_Change(self.whole, k, 0, 0) for k in self._outcomes]
        return int(any(change.in_probabilities and change.is_invisible for change in changes))

    def title(self, sign: Sign, palette: Palette, words: InputWords = PHOTO) -> str:
        """Return a picture's title of two lines: `without pixels marked red`, `cat 98% → 11%`."""
        outcome = self.without(sign)
        assert outcome is not None
        marked = f"without {words.entries} marked {colour_word(sign, palette)}"
        what = marked if sign else ELSEWHERE
        change = self._change(outcome)
        if not change.in_probabilities:
            return f"{what}\nscore {change.arrow}"
        named = f"{self.name} " if len(self.name) <= LONGEST_NAME else ""
        score = f"\nscore {change.score_arrow}" if self._shows_score(sign) else ""
        return f"{what}\n{named}{change.arrow}{score}"

    def sentence(self, palette: Palette, words: InputWords = PHOTO) -> str:
        """Return what removing each colour does, in two sentences, or a few more if needed.

        Args:
            palette: The colours.
            words: The words for the input.

        Returns:
            The sentences.
        """
        if not self._outcomes:
            return (
                f"Nothing is coloured: no part of the {words.whole} was found that speaks for or "
                f"against {self.name}."
            )
        said: list[str] = []
        for sign in COLOUR_SIGNS:
            outcome = self.without(sign)
            if outcome is None:
                continue
            marked = self._marked(sign, palette, words, again=bool(said))
            subject = "it" if said else self._subject
            change, with_score = self._change(outcome), self._shows_score(sign)
            found = change.words(subject, repeat=not said, with_score=with_score)
            control = self._control_words() if sign == 1 else ""
            said.append(f"Without {marked}, {found}{control}.")
            if sign == 1 and self.is_matched_by_control:
                said.append(
                    "The same pattern elsewhere lowers the score about as far: read the "
                    f"{colour_word(1, palette)} with care."
                )
        if self.without_positive is None:
            said.append(f"No part was found that speaks for {self.name}.")
        if self.without_negative is None:
            said.append(f"No part was found that speaks against {self.name}.")
        return " ".join([*said, *self._warnings(palette)])

    @property
    def _outcomes(self) -> list[Outcome]:
        """The outcomes without each colour that the map has."""
        return [k for k in (self.without_positive, self.without_negative) if k is not None]

    @property
    def is_matched_by_control(self) -> bool:
        """Whether the score falls about as far in the control as without red pixels."""
        red, control = self.without_positive, self.without_control
        if red is None or control is None or 1 in self.refuted:
            return False
        return self.whole.score - control.score >= AS_FAR * (self.whole.score - red.score)

    def _change(self, outcome: Outcome) -> _Change:
        """Return a change as text, with decimals that tell outcomes from the whole input's."""
        percent = self.needed_decimals if self.decimals is None else self.decimals

        def alike(more: int) -> int:
            changes = [_Change(self.whole, k, percent, more) for k in self._outcomes]
            return sum(change.is_score_invisible for change in changes)

        return _Change(self.whole, outcome, percent, min(range(3), key=alike))

    @property
    def _subject(self) -> str:
        return self.name if self.whole.probability is not None else f"the score of {self.name}"

    def _marked(self, sign: Sign, palette: Palette, words: InputWords, *, again: bool) -> str:
        """Return what is removed, such as `the tenth of the photo that is marked …`."""
        colour, share = colour_word(sign, palette), self.shares[sign < 0]
        if words.few is not None and self.has_few(sign):
            return words.few.format(colour, share=f"{100 * share:.1g}%")
        return (words.again if again else words.marked).format(colour)

    def _shows_score(self, sign: Sign) -> bool:
        """Whether a score stands beside a probability; red has one if its control has."""
        outcome = self.without_negative if sign == -1 else self.without_positive
        if outcome is None or self.whole.probability is None:
            return False
        return self._change(outcome).needs_score or (sign != -1 and self.is_matched_by_control)

    def _control_words(self) -> str:
        if self.without_control is None:
            return ""
        change = self._change(self.without_control)
        score = f", score {change.score_after}" if self._shows_score(0) else ""
        return f" (the same pattern elsewhere: {change.after}{score})"

    def _warnings(self, palette: Palette) -> list[str]:
        """Return what to say if the model does not confirm a colour."""
        every = " by every kind of removal" if self.removals > 1 else ""
        effect = {1: "lower", -1: "raise"}
        return [
            f"Removing what is marked {colour_word(sign, palette)} does not "
            f"{effect[sign]} the score{every}: read this map with care."
            for sign in self.refuted
        ]


Sign = Literal[1, -1, 0]
"""Whose pixels are removed: those that speak for the target, against it, or the control's."""

COLOUR_SIGNS: tuple[Literal[1], Literal[-1]] = (1, -1)
ELSEWHERE = "control: the same pattern elsewhere"


def colour_word(sign: int, palette: Palette) -> str:
    """Return the word for the colour of a sign."""
    return palette.positive_word if sign == 1 else palette.negative_word


def score_meaning(tests: Sequence[ColourTest]) -> str:
    """Return what the scores of tests in one picture are."""
    have_percentages = any(test.whole.probability is not None for test in tests)
    return SCORE_BEFORE_PERCENTAGE if have_percentages else SCORE_ALONE


def share_decimals(tests: Sequence[ColourTest]) -> list[ColourTest]:
    """Return tests whose percentages have the same decimals, because they stand in one picture."""
    decimals = max((test.needed_decimals for test in tests), default=0)
    return [replace(test, decimals=decimals) for test in tests]


class _Change:
    """Two outcomes as text: as probabilities if both have one, else as scores.

    Percentages are written with `decimals`, scores with `more` decimals than usual.
    """

    def __init__(self, whole: Outcome, without: Outcome, decimals: int, more: int) -> None:
        if whole.score:
            more += _leading_zeros(max(abs(whole.score), abs(without.score)))
        scores = score_before, self.score_after = [
            _score_text(outcome.score, more) for outcome in (whole, without)
        ]
        self.score_arrow = f"{score_before} → {self.score_after}"
        self.is_score_invisible = score_before == self.score_after
        self.before, self.after = scores
        self._moves = without.score - whole.score
        self._is_felt = abs(self._moves) >= FELT * abs(whole.score)
        self._score_words = f"{_verb(self._moves)} from {score_before} to {self.score_after}"
        self.is_small = self.needs_score = False
        self.in_probabilities = whole.probability is not None and without.probability is not None
        if whole.probability is not None and without.probability is not None:
            turns = self._moves * (without.probability - whole.probability) < 0
            self._moves = without.probability - whole.probability
            self.before, self.after = (
                f"{k:.{decimals}%}" for k in (whole.probability, without.probability)
            )
            self.is_small = abs(self._moves) < SMALL_CHANGE
            self.needs_score = self.is_small or turns

    @property
    def is_invisible(self) -> bool:
        """Whether both are written alike."""
        return self.before == self.after

    @property
    def arrow(self) -> str:
        """The change as numbers, such as `98% → 11%`."""
        return f"{self.before} → {self.after}"

    def words(self, subject: str, *, repeat: bool, with_score: bool) -> str:
        """Return `cat falls from 98% to 11%`; without `repeat`, `it falls to 11%`."""
        score = f", score {self.score_arrow}" if with_score else ""
        if self.is_small and self._is_felt:
            return f"{subject} stays near {self.before} ({self.arrow}), but its score " + (
                self._score_words
            )
        if self.is_small:
            return f"{subject} hardly changes: {self.arrow}{score}"
        if self.is_invisible:
            return f"{subject} stays at {self.before}"
        start = f"from {self.before} " if repeat else ""
        return f"{subject} {_verb(self._moves)} {start}to {self.after}{score}"


def _verb(change: float) -> str:
    return "falls" if change < 0 else "rises"


def _leading_zeros(value: float) -> int:
    """Return how many further decimals show two digits of a score below 0.1; at most six."""
    return min(6, -math.floor(math.log10(value))) if 0 < value < 0.1 else 0


def _score_text(value: float, more: int) -> str:
    decimals = (0 if abs(value) >= 100 else 1) + more
    text = f"{value:,.{decimals}f}".replace("-", "−")
    return text if text.strip("−0.") else text.removeprefix("−")


def colour_tests(
    decomposition: Decomposition,
    names: Sequence[str],
    *,
    activation: Activation | None = None,
    likely: Sequence[OneTarget | str] | None = None,
) -> list[ColourTest | None]:
    """Return what the test of each row's colours found; None for rows that were not tested.

    The rows stand in one picture, so that their percentages have the same decimals.

    Args:
        decomposition: What `DMBP.explain` returned.
        names: What each row is about.
        activation: Turns outputs into probabilities: "softmax", "sigmoid", "none" or a function.
            Without it, outcomes have scores only.
        likely: The target of each row whose probability is told, if it has one; by default the
            row's own.

    Returns:
        A test for each row, or None.
    """
    tested = decomposition.tested
    if tested is None:
        return [None] * len(names)
    shown = decomposition.targets if likely is None else likely
    is_drawn = ~decomposition.is_blank
    has_positive = ((decomposition.attribution > 0).flatten(1).any(1) & is_drawn).tolist()
    has_negative = (tested.has_negative & is_drawn).tolist()
    shares = [marked_share(decomposition, sign) for sign in COLOUR_SIGNS]

    def outcome(row: int, found: Tensor, change: float | None) -> Outcome | None:
        """Return an outcome from outputs, and from the score's change if it was recorded."""
        score = None
        if change is not None:
            score = float(decomposition.output[row]) + change
        score = _score(decomposition.targets[row], found, score)
        if score is None:
            return None
        return Outcome(score, _probability(shown[row], found, activation))

    tests: list[ColourTest] = []
    for row, name in enumerate(names):
        lost, gained = tested.change_without_positive[row], tested.change_without_negative[row]
        complete = outcome(row, tested.outputs[row], 0.0)
        assert complete is not None
        positive = outcome(row, tested.outputs_without_positive[row], float(lost[0]))
        negative = outcome(row, tested.outputs_without_negative[row], float(gained[0]))
        control = outcome(row, tested.outputs_without_control[row], None)
        is_refuted = has_positive[row] and not bool(tested.is_confirmed[row])
        test = ColourTest(
            name,
            complete,
            positive if has_positive[row] else None,
            negative if has_negative[row] else None,
            control if has_positive[row] else None,
            refuted=(1,) if is_refuted else (),
            by=tested.removals[0],
            removals=len(tested.removals),
            shares=(shares[0][row], shares[1][row]),
        )
        tests.append(test)
    return list(share_decimals(tests))


def marked_share(decomposition: Decomposition, sign: int) -> list[float]:
    """Return which share of each row's pixels is removed for a sign: a tenth, or fewer."""
    attribution = decomposition.attribution
    pixels = attribution.sum(1) if attribution.dim() > 2 else attribution
    return in_float64(strongest(sign * pixels).flatten(1)).mean(1).tolist()


def _probability(
    target: OneTarget | str, outputs: Tensor, activation: Activation | None
) -> float | None:
    """Return a target's probability from a row's outputs, if it has one."""
    if activation is None:
        return None
    if isinstance(target, BoundTarget) and target.probability is not None:
        return float(target.probability(outputs, activation))
    if isinstance(target, int) and outputs.dim() == 1:
        return float(activation_function(activation)(outputs)[target])
    return None


def _score(target: OneTarget | str, outputs: Tensor, otherwise: float | None) -> float | None:
    """Return a target's score from a row's outputs; that of a saved function is unknown."""
    if isinstance(target, int | tuple):
        return float(outputs[target])
    if isinstance(target, Mapping):
        return sum(weight * float(outputs[index]) for index, weight in target.items())
    if callable(target) and otherwise is None:
        return float(target(outputs))
    return otherwise
