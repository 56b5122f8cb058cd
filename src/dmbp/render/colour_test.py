"""What a score becomes without a map's strongest pixels of each colour, in numbers and in words.

    >>> cat = ColourTest("cat", Outcome(1.4, 0.80), Outcome(-2.1, 0.11), Outcome(4.6, 0.99))
    >>> palette = dmbp.render.PALETTES["red-blue"]
    >>> cat.sentence(palette)
    'Without the red pixels, cat falls from 80% to 11%; without the blue ones, it rises to 99%.'
    >>> cat.title(1, palette)
    'without red: cat 80% → 11%'

`colour_tests` reads these numbers from a tested `Decomposition`. Pictures, charts and the report
draw them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from dmbp.decompose import Decomposition
from dmbp.errors import InputError
from dmbp.linear.targets import OneTarget
from dmbp.probabilities import Activation, activation_function
from dmbp.render.colour import Palette

SMALL_CHANGE = 0.05
"""Scores are shown beside probabilities that change less than this."""

LONGEST_NAME = 16
"""The most letters of a name that a title has room for beside its numbers."""


@dataclass(frozen=True)
class InputWords:
    """The words for an input and for those of its parts that have a colour, `{}`."""

    whole: str
    parts: str


PHOTO = InputWords("photo", "{} pixels")
SIGNAL_WORDS = InputWords("signal", "strongest {} moments")
VECTOR_WORDS = InputWords("input", "strongest {} features")


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
        refuted: The signs, 1 or −1, of the colours that the model does not confirm.
        by: What takes the place of removed pixels.
        removals: By how many kinds of removal colours were tested.
    """

    name: str
    whole: Outcome
    without_positive: Outcome | None
    without_negative: Outcome | None
    refuted: tuple[int, ...] = ()
    by: str = "blur"
    removals: int = 1

    def without(self, sign: Literal[1, -1]) -> Outcome | None:
        """Return the outcome without the pixels of a sign."""
        return self.without_positive if sign == 1 else self.without_negative

    def title(self, sign: Literal[1, -1], palette: Palette) -> str:
        """Return a picture's title, such as `without red: cat 98% → 11%`."""
        colour, outcome = colour_word(sign, palette), self.without(sign)
        if outcome is None:
            return f"no {colour}"
        change = self._change(outcome)
        if not change.in_probabilities:
            return f"without {colour}: score {change.arrow}"
        if change.is_invisible:
            return f"without {colour}: score {change.score_arrow}"
        named = f"{self.name} " if len(self.name) <= LONGEST_NAME else ""
        score = f"\n(score {change.score_arrow})" if change.shows_score else ""
        return f"without {colour}: {named}{change.arrow}{score}"

    def absence(self, sign: Literal[1, -1], palette: Palette, words: InputWords = PHOTO) -> str:
        """Return in words that the map does not have a colour."""
        side = "for" if sign == 1 else "against"
        colour = colour_word(sign, palette)
        return f"Nothing is {colour}: no part of the {words.whole} speaks {side} {self.name}."

    def sentence(self, palette: Palette, words: InputWords = PHOTO) -> str:
        """Return what removing each colour does, in one sentence, or in a few if that is needed.

        Args:
            palette: The colours.
            words: The words for the input.

        Returns:
            The sentence.
        """
        red, blue = (words.parts.format(colour_word(sign, palette)) for sign in (1, -1))
        positive, negative = (
            None if outcome is None else self._change(outcome)
            for outcome in (self.without_positive, self.without_negative)
        )
        if positive is None and negative is None:
            return (
                f"Nothing is coloured: no part of the {words.whole} speaks for or against "
                f"{self.name}."
            )
        if positive is None or negative is None:
            change, parts, sign = (positive, red, -1) if positive else (negative, blue, 1)
            assert change is not None
            found = f"Without the {parts}, {change.words(self._subject)}."
            said = [found, self.absence(sign, palette, words)]
        else:
            falls = positive.words(self._subject)
            rises = negative.words("it", repeat=False)
            ones = colour_word(-1, palette)
            said = [f"Without the {red}, {falls}; without the {ones} ones, {rises}."]
        return " ".join([*said, *self._warnings(palette, words)])

    def _change(self, outcome: Outcome) -> _Change:
        """Return a change as text, with decimals that tell outcomes from the whole input's."""
        others = [k for k in (self.without_positive, self.without_negative) if k is not None]

        def alike(more: int) -> int:
            return sum(_Change(self.whole, k, more).is_invisible for k in others)

        choices = range(3 if self.whole.probability is None else 2)
        return _Change(self.whole, outcome, min(choices, key=alike))

    @property
    def _subject(self) -> str:
        return self.name if self.whole.probability is not None else f"the score of {self.name}"

    def _warnings(self, palette: Palette, words: InputWords) -> list[str]:
        """Return what to say if the model does not confirm a colour."""
        every = " by every kind of removal" if self.removals > 1 else ""
        effect = {1: "lower", -1: "raise"}
        return [
            f"Removing the {words.parts.format(colour_word(sign, palette))} does not "
            f"{effect[sign]} the score{every}: read this map with care."
            for sign in self.refuted
        ]


def colour_word(sign: int, palette: Palette) -> str:
    """Return the word for the colour of a sign."""
    return palette.positive_word if sign == 1 else palette.negative_word


class _Change:
    """Two outcomes as text: as probabilities if both have one, else as scores.

    `more` is how many more decimals than usual are written.
    """

    def __init__(self, whole: Outcome, without: Outcome, more: int) -> None:
        self.before, self.after = _score_text(whole.score, more), _score_text(without.score, more)
        scores = [(_score_text(whole.score, k), _score_text(without.score, k)) for k in range(3)]
        self.score_arrow = " → ".join(next((k for k in scores if k[0] != k[1]), scores[0]))
        self._moves = without.score - whole.score
        self.shows_score = False
        self.in_probabilities = whole.probability is not None and without.probability is not None
        if whole.probability is not None and without.probability is not None:
            turns = self._moves * (without.probability - whole.probability) < 0
            self._moves = without.probability - whole.probability
            self.before, self.after = (
                f"{whole.probability:.{more}%}",
                f"{without.probability:.{more}%}",
            )
            self.shows_score = abs(self._moves) < SMALL_CHANGE or turns

    @property
    def is_invisible(self) -> bool:
        """Whether both are written alike."""
        return self.before == self.after

    @property
    def arrow(self) -> str:
        """The change as numbers, such as `98% → 11%`."""
        return f"{self.before} → {self.after}"

    def words(self, subject: str, *, repeat: bool = True) -> str:
        """Return `cat falls from 98% to 11%`; without `repeat`, `it falls to 11%`."""
        score = f" (score {self.score_arrow})" if self.shows_score else ""
        if self.is_invisible:
            return f"{subject} stays at {self.before}{score}"
        start = f"from {self.before} " if repeat else ""
        verb = "falls" if self._moves < 0 else "rises"
        return f"{subject} {verb} {start}to {self.after}{score}"


def _score_text(value: float, more: int) -> str:
    decimals = (0 if abs(value) >= 100 else 1) + more
    text = f"{value:,.{decimals}f}".replace("-", "−")
    return text if text.strip("−0.") else text.removeprefix("−")


def colour_tests(
    decomposition: Decomposition,
    names: Sequence[str],
    *,
    activation: Activation | None = None,
    outputs: Tensor | None = None,
    classes: Sequence[int | None] | None = None,
) -> list[ColourTest | None]:
    """Return what the test of each row's colours found; None for rows that were not tested.

    Args:
        decomposition: What `DMBP.explain` returned.
        names: What each row is about.
        activation: Turns outputs into probabilities: "softmax", "sigmoid", "none" or a function.
            Without it, outcomes have scores only.
        outputs: The model's outputs for the images, (images, classes), which the activation needs.
        classes: The class of each row whose probability is shown, if any; by default the target, if
            it is a class.

    Returns:
        A test for each row, or None.

    Raises:
        InputError: If there is an activation but no outputs for every image.
    """
    tested = decomposition.tested
    if tested is None:
        return [None] * len(names)
    if classes is None:
        classes = [k if isinstance(k, int) else None for k in decomposition.targets]
    if activation is None:
        probabilities = None
        whole = [None] * len(names)
    else:
        probabilities = activation_function(activation)
        whole = [_outputs_of(outputs, image) for image in decomposition.image]
    is_drawn = ~decomposition.is_blank
    has_positive = ((decomposition.attribution > 0).flatten(1).any(1) & is_drawn).tolist()
    has_negative = (tested.has_negative & is_drawn).tolist()

    def outcome(row: int, change: float, found: Tensor | None) -> Outcome:
        index, score = classes[row], float(decomposition.output[row]) + change
        if found is None:
            return Outcome(score)
        score = _score(decomposition.targets[row], found, score)
        if probabilities is None or index is None:
            return Outcome(score)
        return Outcome(score, float(probabilities(found)[index]))

    tests: list[ColourTest | None] = []
    for row, name in enumerate(names):
        lost, gained = tested.change_without_positive[row], tested.change_without_negative[row]
        positive = outcome(row, float(lost[0]), tested.outputs_without_positive[row])
        negative = outcome(row, float(gained[0]), tested.outputs_without_negative[row])
        is_refuted = has_positive[row] and not bool(tested.is_confirmed[row])
        test = ColourTest(
            name,
            outcome(row, 0.0, whole[row]),
            positive if has_positive[row] else None,
            negative if has_negative[row] else None,
            refuted=(1,) if is_refuted else (),
            by=tested.removals[0],
            removals=len(tested.removals),
        )
        tests.append(test)
    return tests


def _score(target: OneTarget | str, outputs: Tensor, otherwise: float) -> float:
    """Return a target's score from a row's outputs; a function's was found by the test."""
    if isinstance(target, int):
        return float(outputs[target])
    if isinstance(target, Mapping):
        return sum(weight * float(outputs[index]) for index, weight in target.items())
    return otherwise


def _outputs_of(outputs: Tensor | None, image: int) -> Tensor:
    if outputs is None or outputs.dim() != 2 or len(outputs) <= image:
        raise InputError(
            "activation needs the model's outputs for the images, (images, classes): give "
            "outputs=model(images)"
        )
    return outputs[image].detach()
