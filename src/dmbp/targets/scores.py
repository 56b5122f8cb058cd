"""Targets among outputs that have no place on the image: classes, values, steps and embeddings.

Class("cat")                    outputs (classes,)
Margin("cat", over="dog")       the difference of two classes, or of a class and its rivals
Value(2), Value((0, 7))         any output, without a probability: regression
Step(3), Step(3, "a")           outputs (steps, classes): what is read at a step
Step(character=2)               what is read as the third character
Similarity(embedding)           the cosine between outputs (features,) and an embedding
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from dmbp.errors import TargetError
from dmbp.linear.class_difference import RIVALS, rather_than
from dmbp.linear.named_target import BoundTarget, NamedTarget, TargetContext
from dmbp.probabilities import Activation
from dmbp.targets.boxes import is_detector

BLANK = 0
"""The class that stands for no character in outputs of a recogniser (CTC), by convention."""


@dataclass(frozen=True)
class Class(NamedTarget):
    """A class of a classifier.

    Args:
        subject: The class's number, its name, or a word of its name.
    """

    subject: int | str

    def bind(self, context: TargetContext) -> BoundTarget:
        """Return the class's score for one image."""
        outputs = _of_dimensions(context.outputs, 1, "Class", "(classes,)")
        index = context.class_index(self.subject, len(outputs), scores=outputs)
        return BoundTarget(
            self,
            context.class_name(index),
            weights=_one_hot(context.outputs, (index,), dimensions=1),
            probability=lambda found, activation: context.probabilities(
                found.flatten(), -1, activation
            )[index],
            score_words="the model's output for the class, before it becomes a probability",
        )

    @property
    def text(self) -> str:
        """Such as `class:cat`."""
        return f"class:{self.subject}"


@dataclass(frozen=True)
class Margin(NamedTarget):
    """A class rather than others: the difference of their scores.

    Args:
        subject: The class, by number or name.
        over: Another class; or "rivals", the three most probable other classes.
    """

    subject: int | str
    over: int | str = RIVALS

    def bind(self, context: TargetContext) -> BoundTarget:
        """Return the difference for one image."""
        outputs = _of_dimensions(context.outputs, 1, "Margin", "(classes,)")
        index = context.class_index(self.subject, len(outputs), scores=outputs)
        is_rivals = self.over == RIVALS
        other: Any = RIVALS if is_rivals else context.class_index(self.over, len(outputs))
        weights = rather_than(index, other, outputs=outputs, activation=context.activation)
        name = RIVALS if is_rivals else context.class_name(other)
        total = torch.zeros_like(outputs)
        for k, weight in weights.items():
            total[k] = weight
        return BoundTarget(
            self,
            f"{context.class_name(index)} rather than {name}",
            weights=total.view(context.outputs.shape),
            score_words="the difference of the classes' outputs, before they become probabilities",
        )

    @property
    def text(self) -> str:
        """Such as `margin:cat>dog`."""
        return f"margin:{self.subject}>{self.over}"


@dataclass(frozen=True)
class Value(NamedTarget):
    """One output as it is, such as a regression's; it has no probability.

    Args:
        index: Its position, or a position for each dimension of an image's outputs.
    """

    index: int | tuple[int, ...] = 0

    def bind(self, context: TargetContext) -> BoundTarget:
        """Return the output for one image."""
        positions = self.index if isinstance(self.index, tuple) else (self.index,)
        shape = tuple(context.outputs.shape)
        fits = len(positions) == len(shape) and all(
            0 <= k < size for k, size in zip(positions, shape, strict=True)
        )
        if not fits:
            raise TargetError(
                f"there is no value {self.index}: the model's outputs for an image have shape "
                f"{shape}, counted from 0"
            )
        weights = _one_hot(context.outputs, positions, dimensions=len(shape))
        is_named = len(shape) == 1 and context.classes is not None
        name = context.class_name(positions[0]) if is_named else f"value {self._positions}"
        return BoundTarget(self, name, weights=weights, score_words="the model's output")

    @property
    def _positions(self) -> str:
        positions = self.index if isinstance(self.index, tuple) else (self.index,)
        return ",".join(map(str, positions))

    @property
    def text(self) -> str:
        """Such as `value:2`, or `value:0,7`."""
        return f"value:{self._positions}"


@dataclass(frozen=True)
class Step(NamedTarget):
    """What a sequence model reads at a step; outputs are (steps, classes).

    Args:
        position: The step, counted from 0.
        subject: The class at that step, by number or name; by default the one that is read.
        character: In place of a position, the number of a character that is read, counted from 0:
            equal classes at successive steps are one character, and class 0 is none (CTC).
    """

    position: int | None = None
    subject: int | str | None = None
    character: int | None = None

    def __post_init__(self) -> None:
        if (self.position is None) == (self.character is None):
            raise TargetError("a Step takes either a position or a character")

    def bind(self, context: TargetContext) -> BoundTarget:
        """Return the score of the class at the step, for one image."""
        outputs = step_scores(context)
        steps, classes = outputs.shape
        position = self._position(outputs)
        if not 0 <= position < steps:
            raise TargetError(
                f"there is no step {position}: the outputs have steps 0 to {steps - 1}"
            )
        scores = outputs[position]
        chosen = int(scores.argmax()) if self.subject is None else self.subject
        index = context.class_index(chosen, classes, scores=scores)
        name = context.class_name(index)
        if self.character is None:
            name = f"{name} at step {position}"
        else:
            name = f"{name} as {ordinal(self.character + 1)} character"

        def probability(found: Tensor, activation: Activation | None) -> Tensor:
            every = context.probabilities(found.view(steps, classes), -1, activation)
            return every[position, index]

        return BoundTarget(
            self,
            name,
            weights=_one_hot(context.outputs, (position, index), dimensions=2),
            probability=probability,
            is_local=True,
            score_words=f"the model's output for the class at step {position}",
        )

    def _position(self, outputs: Tensor) -> int:
        if self.position is not None:
            return self.position
        found = read_characters(outputs)
        assert self.character is not None
        if not 0 <= self.character < len(found):
            have = f"characters 0 to {len(found) - 1}" if found else "no character"
            raise TargetError(f"there is no character {self.character}: the model reads {have}")
        return found[self.character][0]

    @property
    def text(self) -> str:
        """Such as `step:3`, `step:3=a` or `step:#2`."""
        where = f"#{self.character}" if self.position is None else str(self.position)
        return f"step:{where}" if self.subject is None else f"step:{where}={self.subject}"


def ordinal(number: int) -> str:
    """Return a number as it counts things, such as 3rd."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 < number % 100 < 14 else ending}"


def step_scores(context: TargetContext) -> Tensor:
    """Return the outputs as (steps, classes).

    Raises:
        TargetError: If they have more dimensions, or are boxes.
    """
    if is_detector(context):
        raise TargetError(
            "Step is for outputs (steps, classes), but the model's outputs are those of a "
            "detector: ask about one of its boxes, such as box:0"
        )
    return _of_dimensions(context.outputs, 2, "Step", "(steps, classes)")


def read_characters(outputs: Tensor) -> list[tuple[int, int]]:
    """Return the step and the class of each character that is read from outputs (steps, classes).

    The step is the one at which the character's score is highest.
    """
    best = outputs.argmax(1).tolist()
    starts = [0, *(k for k in range(1, len(best)) if best[k] != best[k - 1]), len(best)]
    found: list[tuple[int, int]] = []
    for start, end in pairwise(starts):
        if best[start] != BLANK:
            step = start + int(outputs[start:end, best[start]].argmax())
            found.append((step, best[start]))
    return found


@dataclass(frozen=True, eq=False)
class Similarity(NamedTarget):
    """The cosine of the angle between a model's outputs and another embedding.

    Args:
        embedding: The other embedding, as many numbers as the model has outputs.
        image: In its place, a photo that the model embeds.
        prompt: In its place, a text that the model's text encoder embeds (CLIP, SigLIP).
    """

    embedding: Any = None
    image: str | None = None
    prompt: str | None = None

    def __post_init__(self) -> None:
        given = [value for value in (self.embedding, self.image, self.prompt) if value is not None]
        if len(given) != 1:
            raise TargetError("a Similarity takes an embedding, an image or a prompt")

    def bind(self, context: TargetContext) -> BoundTarget:
        """Return the cosine for one image."""
        outputs = context.outputs.flatten()
        other = self._embedding(context).to(outputs).flatten()
        if other.shape != outputs.shape:
            raise TargetError(
                f"the embedding has {len(other)} numbers, but the model has {len(outputs)} outputs"
            )
        if not torch.isfinite(other).all() or not other.any():
            raise TargetError("the embedding must have finite numbers that are not all 0")

        def cosine(found: Tensor) -> Tensor:
            return torch.cosine_similarity(found.flatten(), other.to(found), dim=0)

        words = self.prompt or (None if self.image is None else Path(self.image).name)
        name = "similarity to the embedding" if words is None else f"similarity to {words}"
        return BoundTarget(self, name, score=cosine, score_words="the cosine of two embeddings")

    def _embedding(self, context: TargetContext) -> Tensor:
        if self.embedding is not None:
            return torch.as_tensor(self.embedding)
        kind = "image" if self.prompt is None else "prompt"
        embed: Callable[[str], Tensor] | None = context.details.get(f"embed_{kind}")
        if embed is None:
            needs = {
                "image": "a photo is embedded by dmbp.explain and the command line only: give an "
                "embedding",
                "prompt": "the model has no text encoder: prompts are for CLIP and SigLIP",
            }
            raise TargetError(needs[kind])
        return embed(self.prompt or self.image or "")

    def _key(self) -> tuple[str | None, ...]:
        return self.image, self.prompt, self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Similarity) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    @property
    def text(self) -> str:
        """Such as `similarity:image=other.jpg`; an embedding's numbers are encoded as base64."""
        if self.prompt is not None:
            return f"similarity:prompt={self.prompt}"
        if self.image is not None:
            return f"similarity:image={self.image}"
        numbers = torch.as_tensor(self.embedding).detach().cpu().flatten().to(torch.float32)
        return f"similarity:embedding={base64.b64encode(numbers.numpy().tobytes()).decode()}"

    @staticmethod
    def read(value: str) -> Similarity:
        """Return the target whose text ends in `value`, such as `image=other.jpg`.

        Raises:
            TargetError: If it is none.
        """
        kind, _, rest = value.partition("=")
        if not rest or kind not in READERS:
            raise TargetError(
                "a similarity is written as similarity:image=FILE, similarity:prompt=TEXT or "
                f"similarity:embedding=BASE64, not similarity:{value}"
            )
        return READERS[kind](rest)


def _decoded(text: str) -> Similarity:
    try:
        numbers = numpy.frombuffer(base64.b64decode(text, validate=True), dtype=numpy.float32)
    except ValueError as error:
        raise TargetError(
            "the embedding of a similarity is not base64 of float32 numbers"
        ) from error
    return Similarity(torch.from_numpy(numbers.copy()))


READERS: Mapping[str, Callable[[str], Similarity]] = {
    "image": lambda text: Similarity(image=text),
    "prompt": lambda text: Similarity(prompt=text),
    "embedding": _decoded,
}
"""How each kind of similarity is read from text."""


def _of_dimensions(outputs: Tensor, count: int, kind: str, form: str) -> Tensor:
    """Return outputs without dimensions of length one, if they have the form that a target needs.

    Raises:
        TargetError: If they have not.
    """
    lengths = [size for size in outputs.shape if size > 1]
    if len(lengths) > count:
        raise TargetError(
            f"{kind} is for outputs {form}, but the model's outputs for an image have shape "
            f"{tuple(outputs.shape)}"
        )
    return outputs.reshape([1] * (count - len(lengths)) + lengths)


def _one_hot(outputs: Tensor, index: tuple[int, ...], *, dimensions: int) -> Tensor:
    """Return weights shaped like outputs, of which one is 1; lengths of one are not counted."""
    weights = torch.zeros_like(outputs)
    lengths = [size for size in outputs.shape if size > 1]
    view = weights.view(
        outputs.shape
        if dimensions == outputs.dim()
        else [1] * (dimensions - len(lengths)) + lengths
    )
    view[index] = 1
    return weights
