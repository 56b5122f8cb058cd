"""What is explained about a photo, with the words for it in pictures, files and on the console.

Commands never ask what kind of target they have. They use what `ExplainedTarget` offers: `target`
goes to the methods; `name`, `label`, `caption`, `score_words`, `slug` and `record` describe it; and
insertion curves follow the probability of `likely`. `ClassTarget` is a class of a classifier, alone
or rather than others, and `OtherTarget` everything else that `dmbp.targets` offers.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import numpy
import torch
from torch import Tensor

from dmbp.data import read_photo
from dmbp.errors import TargetError
from dmbp.linear import ClassWeights, OneTarget, rather_than
from dmbp.linear.class_difference import RIVALS
from dmbp.models import Classifier
from dmbp.render import CurveSubject
from dmbp.targets import (
    BoundTarget,
    Class,
    NamedTarget,
    TargetContext,
    WeightedTargets,
    is_target_text,
    output_kind,
    target_from_text,
)
from dmbp.targets.regions import is_packed_mask, unpacked_mask
from dmbp.targets.text import class_from_text

LONGEST_SLUG = 120
"""The most characters of a target in a file's name; file systems allow 255 for the whole name."""

MASK_LEVEL = 127
"""Pixels of a mask's picture that are brighter are inside."""

LONGEST_TEXT = 80
"""Targets with longer texts, such as a mask's, get a number in file names that tells them apart."""


class ExplainedTarget(ABC):
    """A target of one photo."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What is explained, in words, such as `cat`."""

    @property
    @abstractmethod
    def target(self) -> OneTarget:
        """What methods and metrics take."""

    @property
    @abstractmethod
    def likely(self) -> OneTarget:
        """The target whose probability is told, and which insertion curves follow."""

    @property
    @abstractmethod
    def curve(self) -> CurveSubject:
        """The words for `likely` in insertion curves."""

    @property
    @abstractmethod
    def has_probability(self) -> bool:
        """Whether pictures tell how a probability changes; otherwise they tell the score."""

    @property
    def region(self) -> Tensor | None:
        """Where on the model's input the target looks, (height, width), if it says so."""
        return None

    @abstractmethod
    def label(self, *, decimals: int = 0) -> str:
        """Return what is explained with its probability: `cat (93%)`."""

    def caption(self, lead: str, *, decimals: int = 0) -> str:
        """Return a picture's title that starts with `lead`."""
        return f"{lead} {self.label(decimals=decimals)}"

    @abstractmethod
    def score_words(self) -> str:
        """Return what the score is, such as `the model's output for the class, before …`."""

    @abstractmethod
    def slug(self) -> str:
        """Return what is explained for a file name, such as `0-cat`."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Return what is explained as plain values for a JSON file."""


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
        return f"{self.index}-{_slug(self.name)}".strip("-")

    def record(self) -> dict[str, Any]:
        """Return number, name and probability for a JSON file."""
        return {"class": self.index, "name": self.name, "probability": self.probability}


@dataclass(frozen=True)
class ClassTarget(ExplainedTarget):
    """A class to explain, alone or rather than others.

    `weights` is the class's number, or weights by class. `others` are the classes with negative
    weights. With the kind "rivals", the model's outputs decided which they are; with "rather_than",
    the user did.
    """

    subject: NamedClass
    weights: int | ClassWeights
    others: tuple[NamedClass, ...] = ()
    kind: Literal["class", "rather_than", "rivals"] = "class"

    @property
    def target(self) -> OneTarget:
        """The class's number, or weights by class."""
        return self.weights

    @property
    def likely(self) -> OneTarget:
        """The class, also if it is explained rather than others."""
        return self.subject.index

    @property
    def curve(self) -> CurveSubject:
        """The class's name."""
        return CurveSubject(self.subject.name)

    @property
    def has_probability(self) -> bool:
        """A difference of classes has none."""
        return not self.others

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
        if not isinstance(self.weights, int):
            others = [{**k.record(), "weight": self.weights[k.index]} for k in self.others]
        return {**self.subject.record(), "kind": self.kind, "rather_than": others}

    def _parts(self, decimals: int) -> list[str]:
        subject = self.subject.label(decimals=decimals)
        if not self.others:
            return [subject]
        labels = [other.label(decimals=decimals) for other in self.others]
        is_rivals = self.kind == "rivals"
        others = "rivals " + _joined(labels, "and") if is_rivals else _joined(labels, "or")
        return [subject, f"rather than {others}"]


@dataclass(frozen=True)
class OtherTarget(ExplainedTarget):
    """A target of `dmbp.targets`, bound to a photo's outputs; `outputs` have the model's shape."""

    bound: BoundTarget
    outputs: Tensor

    @property
    def name(self) -> str:
        """What is explained, such as `cat in box 2`."""
        return self.bound.name

    @property
    def target(self) -> OneTarget:
        """The bound target."""
        return self.bound

    @property
    def likely(self) -> OneTarget:
        """The bound target."""
        return self.bound

    @property
    def curve(self) -> CurveSubject:
        """Its name."""
        return CurveSubject(self.bound.name, in_percent=self.has_probability)

    @property
    def has_probability(self) -> bool:
        """A value or a similarity has none."""
        return self.bound.probability is not None

    @property
    def region(self) -> Tensor | None:
        """A segmentation's region, or a detector's box."""
        return self.bound.region

    @cached_property
    def score(self) -> float:
        """The score of the photo."""
        return float(self.bound(self.outputs))

    @cached_property
    def probability(self) -> float | None:
        """The probability, if the target has one."""
        if self.bound.probability is None:
            return None
        return float(self.bound.probability(self.outputs, None))

    def label(self, *, decimals: int = 0) -> str:
        """Return `cat in box 2 (93%)`, or `value 3 (4.21)`."""
        number = f"{self.score:.3g}" if self.probability is None else ""
        return f"{self.name} ({number or f'{self.probability:.{decimals}%}'})"

    def score_words(self) -> str:
        """Return what the score is."""
        return self.bound.score_words

    def slug(self) -> str:
        """Return the name for a file name, and a number if the text is too long to tell by."""
        number = (
            f"-{crc32(self.bound.text.encode()):08x}" if len(self.bound.text) > LONGEST_TEXT else ""
        )
        return _slug(self.name)[: LONGEST_SLUG - len(number)].rstrip("-") + number

    def record(self) -> dict[str, Any]:
        """Return the target as it is written on the command line, its kind and name."""
        text = self.bound.text
        is_sum = isinstance(self.bound.source, WeightedTargets)
        return {
            "target": text,
            "name": self.name,
            "kind": "sum" if is_sum else text.partition(":")[0],
            "probability": self.probability,
        }


def _slug(text: str) -> str:
    """Return the letters and digits of a text, with hyphens between its words."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


Asked = str | NamedTarget
"""What a user asks about: the number or name of a class, a text of `dmbp.targets`, or a target."""


def explained_targets(
    classifier: Classifier, context: TargetContext, targets: Sequence[Asked], others: Sequence[str]
) -> Sequence[ExplainedTarget]:
    """Look up what to explain about a photo.

    Args:
        classifier: The model.
        context: Its outputs for the photo, and what is known about it.
        targets: Numbers or names of classes, texts of `dmbp.targets`, or targets; if there are
            none, what `classifier.asked` says, or else what suits the outputs is explained.
        others: Numbers or names of classes to explain each target rather than, or "rivals".

    Returns:
        The targets, each once.

    Raises:
        TargetError: If there is no such target, or none that it can be compared with.
    """
    outputs = context.outputs
    targets = targets or classifier.asked
    names = {name.lower() for name in classifier.classes or ()}
    classes = [
        k
        for k in targets
        if isinstance(k, str) and (not is_target_text(k) or k.strip().lower() in names)
    ]
    if outputs.dim() == 1 and len(classes) == len(targets) and not classifier.is_encoder:
        return class_targets(classifier, outputs, classes, others)
    if others:
        raise TargetError(
            "--rather-than compares the classes of a classifier: write the difference of other "
            "targets as a sum, such as --target '1*region:cat + -1*region:dog'"
        )
    asked = [_named_target(k, classifier, context) if isinstance(k, str) else k for k in targets]
    if not asked:
        if classifier.is_encoder:
            prompt = "" if classifier.embed is None else "--prompt 'a cat', or "
            raise TargetError(
                f"{classifier.name} gives embeddings: say what to compare the photo with, such as "
                f"{prompt}--target similarity:image=FILE"
            )
        asked = [output_kind(context).default(context)]
    bound = [OtherTarget(target.bind(context), outputs) for target in asked]
    # A user's own targets may share a text, but not a name.
    return list({(target.bound.text, target.name): target for target in bound}.values())


def _named_target(text: str, classifier: Classifier, context: TargetContext) -> NamedTarget:
    """Return the target that a user wrote; a class alone stands for what suits the outputs."""
    if is_target_text(text):
        return target_from_text(text, mask=read_mask)
    if classifier.is_encoder:
        prompt = "" if classifier.embed is None else "it as --prompt, or "
        raise TargetError(
            f"{classifier.name} gives embeddings and has no class {text!r}: give {prompt}"
            "another photo as --target similarity:image=FILE"
        )
    if context.outputs.dim() == 1:
        return Class(class_from_text(text))
    return output_kind(context).of_class(class_from_text(text))


def read_mask(text: str) -> Tensor:
    """Return a mask from a picture file, or one that a target's own text holds.

    Raises:
        PhotoError: If the file cannot be read.
    """
    if is_packed_mask(text):
        return unpacked_mask(text)
    picture = numpy.asarray(read_photo(Path(text)).convert("L"))
    return torch.from_numpy(picture > MASK_LEVEL)


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
