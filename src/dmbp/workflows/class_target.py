"""What is explained about a photo, with the words for it in pictures, files and on the console.

Commands never ask what kind of target they have. They use what `ClassTarget` offers: `target` goes
to the methods; `name`, `label`, `caption`, `score_words`, `slug` and `record` describe it; and
insertion curves follow the probability of `subject`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from dmbp.errors import TargetError
from dmbp.linear import ClassWeights, rather_than
from dmbp.linear.class_difference import RIVALS
from dmbp.models import Classifier

LONGEST_SLUG = 120
"""The most characters of a target in a file's name; file systems allow 255 for the whole name."""


@dataclass(frozen=True)
class NamedClass:
    """A class with its number, its name and its probability on a photo."""

    index: int
    name: str
    probability: float

    @staticmethod
    def of(classifier: Classifier, outputs: Tensor, index: int) -> "NamedClass":
        """Return a class with its name and probability, from a photo's outputs (classes,)."""
        probability = float(classifier.probabilities(outputs)[index])
        return NamedClass(index, classifier.class_name(index), probability)

    def label(self, *, decimals: int = 0) -> str:
        """Return name and probability, such as `cat (98%)`."""
        return f"{self.name} ({self.probability:.{decimals}%})"

    def slug(self) -> str:
        """Return number and name for a file name; several classes may have one name."""
        words = re.sub(r"[^a-z0-9]+", "-", self.name.lower())
        return f"{self.index}-{words}".strip("-")

    def record(self) -> dict[str, Any]:
        """Return number, name and probability for a JSON file."""
        return {"class": self.index, "name": self.name, "probability": self.probability}


@dataclass(frozen=True)
class ClassTarget:
    """A class to explain, alone or rather than others.

    `target` is what the methods take: the class's number, or weights by class. `others` are the
    classes with negative weights. With the kind "rivals", the model's outputs decided which they
    are; with "rather_than", the user did.
    """

    subject: NamedClass
    target: int | ClassWeights
    others: tuple[NamedClass, ...] = ()
    kind: Literal["class", "rather_than", "rivals"] = "class"

    @property
    def name(self) -> str:
        """What is explained, in words: `cat`, `cat rather than dog`, `cat rather than rivals`."""
        if not self.others:
            return self.subject.name
        others = RIVALS if self.kind == "rivals" else _joined([k.name for k in self.others], "or")
        return f"{self.subject.name} rather than {others}"

    def label(self, *, decimals: int = 0) -> str:
        """Return what is explained with probabilities: `cat (93%) rather than dog (4%)`."""
        return " ".join(self._parts(decimals))

    def caption(self, lead: str, *, decimals: int = 0) -> str:
        """Return a picture's title that starts with `lead`, other classes on their own line."""
        return f"{lead} " + "\n".join(self._parts(decimals))

    def score_words(self) -> str:
        """Return what the score is, such as `the model's output for the class, before …`."""
        if not self.others:
            return "the model's output for the class, before it becomes a probability"
        is_weighted = self.kind == "rivals" and len(self.others) > 1
        mean = "weighted mean of those" if is_weighted else "mean of those"
        minus = "that" if len(self.others) == 1 else f"the {mean}"
        names = _joined([other.name for other in self.others], "and")
        return (
            f"the model's output for {self.subject.name} minus {minus} for {names}, before they "
            "become probabilities"
        )

    def slug(self) -> str:
        """Return what is explained for a file name, such as `0-cat-rather-than-1-dog`."""
        others = [RIVALS] if self.kind == "rivals" else [other.slug() for other in self.others]
        words = "-".join([self.subject.slug(), *(["rather-than", *others] if others else [])])
        return words[:LONGEST_SLUG].rstrip("-")

    def record(self) -> dict[str, Any]:
        """Return the class, the kind of question and the weights of other classes, for JSON."""
        others: list[dict[str, Any]] = []
        if not isinstance(self.target, int):
            others = [{**k.record(), "weight": self.target[k.index]} for k in self.others]
        return {**self.subject.record(), "kind": self.kind, "rather_than": others}

    def _parts(self, decimals: int) -> list[str]:
        subject = self.subject.label(decimals=decimals)
        if not self.others:
            return [subject]
        labels = [other.label(decimals=decimals) for other in self.others]
        is_rivals = self.kind == "rivals"
        others = "rivals " + _joined(labels, "and") if is_rivals else _joined(labels, "or")
        return [subject, f"rather than {others}"]


def class_targets(
    classifier: Classifier, outputs: Tensor, targets: Sequence[str], others: Sequence[str]
) -> list[ClassTarget]:
    """Look up the classes to explain.

    Args:
        classifier: The model, which knows the classes' names.
        outputs: Its outputs (classes,) for the photo.
        targets: Numbers or names of classes; if there are none, the top class is explained.
        others: Numbers or names of classes to explain each target rather than, or "rivals".

    Returns:
        A target for each class; a class that is named twice has one.

    Raises:
        TargetError: If there is no such class, or none that the target can be compared with.
    """
    if others and len(outputs) == 1:
        raise TargetError("--rather-than compares classes, but the model has a single output")
    indices = _class_indices(classifier, outputs, targets) or [int(outputs.argmax())]
    compared: list[int] | Literal["rivals"]
    if RIVALS in [text.strip().lower() for text in others]:
        if len(others) > 1:
            raise TargetError("--rather-than takes either classes or rivals, not both")
        compared = RIVALS
    else:
        compared = _class_indices(classifier, outputs, others)
    return [_class_target(classifier, outputs, index, compared) for index in indices]


def _class_indices(classifier: Classifier, outputs: Tensor, names: Sequence[str]) -> list[int]:
    """Look up classes, each once: a number and a name may be the same class."""
    return list(dict.fromkeys(classifier.class_index(text, outputs) for text in names))


def _class_target(
    classifier: Classifier, outputs: Tensor, index: int, others: list[int] | Literal["rivals"]
) -> ClassTarget:
    subject = NamedClass.of(classifier, outputs, index)
    if not others:
        return ClassTarget(subject, index)
    if others != RIVALS and index in others:
        raise TargetError(
            f"{subject.name!r} cannot be explained rather than itself: choose another class with "
            "--target or --rather-than"
        )
    weights = rather_than(index, others, outputs=outputs, activation=classifier.activation)
    named = tuple(NamedClass.of(classifier, outputs, k) for k in weights if k != index)
    return ClassTarget(subject, weights, named, "rivals" if others == RIVALS else "rather_than")


def _joined(words: Sequence[str], last: str) -> str:
    """Return words with commas and, before the last, the word `last`: `a, b or c`."""
    *first, final = words
    return f"{', '.join(first)} {last} {final}" if first else final
