"""Targets that know what they are called: the base class of everything in `dmbp.targets`.

A `NamedTarget` is a question such as "the cat in this box". It is bound to one image's outputs when
it is read; the `BoundTarget` has the score, its name in words, and where on the image it looks. A
target of your own takes a few lines:

    >>> from dmbp.linear.targets import read_target
    >>> class Total(NamedTarget):
    ...     def bind(self, context):
    ...         return BoundTarget(self, "all outputs", score=lambda outputs: outputs.sum())
    >>> rows = read_target(Total(), outputs=torch.tensor([[1.0, 2.0]]))
    >>> rows.scores(torch.tensor([[1.0, 2.0]])).tolist(), rows.labels[0].name
    ([3.0], 'all outputs')

Targets can be added and weighted: `2 * Total() - Total()`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from dmbp.errors import TargetError, suggestion
from dmbp.files import shown
from dmbp.probabilities import Activation, activation_function

Point = tuple[float, float]
"""A place on an image, x and y in pixels from its top left corner."""


@dataclass(frozen=True)
class TargetContext:
    """What a target may look at when it is bound.

    Attributes:
        outputs: One image's outputs, in the model's own shape.
        size: The spatial sizes of the model's input, such as (height, width).
        classes: The names of the classes, if they are known.
        activation: What turns outputs into probabilities: "softmax", "sigmoid", "none" or a
            function of outputs (…, classes).
        place: Maps a point of the user's photo to the model's input; by default they are the same.
        details: What else is known about the model, by name, for targets that need it.
    """

    outputs: Tensor
    size: tuple[int, ...] = ()
    classes: tuple[str, ...] | None = None
    activation: Activation = "softmax"
    place: Callable[[Point], Point] = lambda point: point
    details: dict[str, Any] = field(default_factory=dict[str, Any])

    def class_index(self, wanted: int | str, count: int, *, scores: Tensor | None = None) -> int:
        """Return the index of a class that is given by number or name.

        Args:
            wanted: A number, a name, or a word of a name, in upper or lower case.
            count: How many classes the outputs have.
            scores: The score of each class; among several names with the word, the one with the
                highest score is chosen.

        Raises:
            TargetError: If there is no such class.
        """
        is_number = hasattr(wanted, "__index__") and not isinstance(wanted, bool)
        if not is_number and not isinstance(wanted, str):
            raise TargetError(f"a class is a number or a name, not {wanted!r}")
        if is_number or str(wanted).strip().isdecimal():
            # More digits than Python reads as a number are out of any range.
            index = count if isinstance(wanted, str) and len(wanted) > 18 else int(wanted)
            if not 0 <= index < count:
                raise TargetError(
                    f"class {shown(str(wanted))} is out of range: the model has classes 0 to "
                    f"{count - 1}"
                )
            return index
        if self.classes is None:
            raise TargetError(
                f"the model's classes have no names, so {wanted!r} cannot be looked up: give a "
                f"number from 0 to {count - 1}"
            )
        text = str(wanted).strip().lower()
        names = [name.lower() for name in self.classes[:count]]
        found = [k for k, name in enumerate(names) if name == text] or [
            k for k, name in enumerate(names) if text in name.replace("-", " ").split()
        ]
        if not found:
            hint = suggestion(str(wanted), list(self.classes))
            raise TargetError(f"the model has no class {wanted!r}; {hint}")
        return found[0] if scores is None else max(found, key=lambda k: float(scores[k]))

    def class_name(self, index: int) -> str:
        """Return a class's name, or "class 3" if it has none."""
        names = self.classes
        return names[index] if names is not None and index < len(names) else f"class {index}"

    def probabilities(
        self, outputs: Tensor, dimension: int, activation: Activation | None = None
    ) -> Tensor:
        """Return the probability of every class along a dimension of the outputs.

        Args:
            outputs: The outputs.
            dimension: The dimension of the classes.
            activation: Used in place of the context's.
        """
        apply = activation_function(self.activation if activation is None else activation)
        return apply(outputs.movedim(dimension, -1)).movedim(-1, dimension)


@dataclass(frozen=True, eq=False)
class BoundTarget:
    """A target of one image: a function of the image's outputs, with words for it.

    Attributes:
        source: The target that was bound.
        name: What is explained, in words, such as "cat in the box".
        score: Computes the score from one image's outputs; or `weights` are given.
        weights: The weight of every output, shaped like the outputs, if the score is their sum.
        probability: Computes a probability from one image's outputs, if the target has one. Its
            second argument takes the place of the context's activation, unless it is None.
        region: Where on the model's input the target looks, as a mask of its spatial sizes.
        is_local: Whether the target looks at a part of the model's input that is not known as a
            region, such as a character, so that small windows find its evidence.
        score_words: What the score is, in words.
    """

    source: NamedTarget
    name: str
    score: Callable[[Tensor], Tensor] | None = field(default=None, repr=False)
    weights: Tensor | None = field(default=None, repr=False)
    probability: Callable[[Tensor, Activation | None], Tensor] | None = field(
        default=None, repr=False
    )
    region: Tensor | None = field(default=None, repr=False)
    is_local: bool = False
    score_words: str = "the score"

    def __call__(self, outputs: Tensor) -> Tensor:
        """Return the score of one image's outputs."""
        if self.weights is not None:
            return (outputs * self.weights.to(outputs)).sum()
        assert self.score is not None, "a bound target has a score or weights"
        return self.score(outputs)

    def likelihood(self, outputs: Tensor) -> Tensor:
        """Return the probability of one image's outputs, or the score if there is none."""
        return self(outputs) if self.probability is None else self.probability(outputs, None)

    @property
    def text(self) -> str:
        """The target as it is written on the command line and in files."""
        return self.source.text


class NamedTarget(ABC):
    """A question about a model's outputs; see the module."""

    @abstractmethod
    def bind(self, context: TargetContext) -> BoundTarget:
        """Return the target of one image.

        Raises:
            TargetError: If the outputs have no such target.
        """

    @property
    def text(self) -> str:
        """The target as it is written on the command line and in files."""
        return type(self).__name__.lower()

    def __str__(self) -> str:
        return self.text

    def __add__(self, other: NamedTarget) -> WeightedTargets:
        return WeightedTargets((*_terms(self), *_terms(other)))

    def __sub__(self, other: NamedTarget) -> WeightedTargets:
        return self + -1 * other

    def __mul__(self, weight: float) -> WeightedTargets:
        return WeightedTargets(tuple((weight * own, target) for own, target in _terms(self)))

    __rmul__ = __mul__

    def __neg__(self) -> WeightedTargets:
        return self * -1


def _terms(target: Any) -> Sequence[tuple[float, NamedTarget]]:
    if isinstance(target, WeightedTargets):
        return target.terms
    if not isinstance(target, NamedTarget):
        raise TargetError(f"only targets can be added to a target, not {target!r}")
    return [(1.0, target)]


@dataclass(frozen=True)
class WeightedTargets(NamedTarget):
    """A weighted sum of targets.

    Args:
        terms: Pairs of a weight and a target.
    """

    terms: tuple[tuple[float, NamedTarget], ...]

    def __post_init__(self) -> None:
        for weight, _ in self.terms:
            if not isinstance(weight, Real) or not math.isfinite(weight):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TargetError(f"the weight of a target must be a finite number, not {weight!r}")
        if not any(weight for weight, _ in self.terms):
            raise TargetError("a sum of targets needs one with a weight other than 0")

    def bind(self, context: TargetContext) -> BoundTarget:
        """Return the sum for one image; it is linear if all of its terms are."""
        bound = [(weight, target.bind(context)) for weight, target in self.terms]
        regions = [target.region for _, target in bound if target.region is not None]
        region = torch.stack(regions).any(0) if regions else None
        weights = [
            weight * target.weights for weight, target in bound if target.weights is not None
        ]
        name = _sum_text([(weight, target.name) for weight, target in bound])
        words = f"the sum of scores {name}"
        is_local = all(target.is_local for _, target in bound)
        if len(weights) == len(bound):
            total = torch.stack(weights).sum(0)
            return BoundTarget(
                self, name, weights=total, region=region, is_local=is_local, score_words=words
            )

        def score(outputs: Tensor) -> Tensor:
            return torch.stack([weight * target(outputs) for weight, target in bound]).sum()

        return BoundTarget(
            self, name, score=score, region=region, is_local=is_local, score_words=words
        )

    @property
    def text(self) -> str:
        """The terms, such as `2*class:cat + -1*value:3`."""
        return " + ".join(f"{exact(weight)}*{target.text}" for weight, target in self.terms)


def exact(number: float) -> str:
    """Return the shortest text that is read as the same number, such as 3, 0.5 or 1e-07."""
    return repr(float(number)).removesuffix(".0")


def _sum_text(terms: Sequence[tuple[float, str]]) -> str:
    """Return a sum in words, such as `cat − 0.5 · dog`."""
    text = " ".join(
        f"{'−' if weight < 0 else '+'} {'' if abs(weight) == 1 else f'{abs(weight):g} · '}{name}"
        for weight, name in terms
    )
    return text.removeprefix("+ ")
