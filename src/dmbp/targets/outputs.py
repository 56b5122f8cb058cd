"""What a model's outputs are: what they say in words, and what is asked if the user asks nothing.

    boxes    a detector's, of a known layout     the strongest box
    map      (classes, height, width)            the class that is predicted most, where it is
    steps    (steps, classes)                    the first character that is read

`KINDS` has a row for each. Outputs (classes,) need none: every command reads them as classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from dmbp.errors import TargetError
from dmbp.linear.named_target import NamedTarget, TargetContext
from dmbp.targets.boxes import LEAST_PROBABILITY, Box, boxes_in, is_detector
from dmbp.targets.regions import Region, predicted_classes, score_maps
from dmbp.targets.scores import Step, read_characters, step_scores

SPACE = "␣"
"""The name of the class that stands for a space."""

MOST_SAID = 4
"""How many boxes or classes are said; the rest is counted."""

MOST_CHARACTERS = 40
"""How many characters of what is read are said."""


@dataclass(frozen=True)
class OutputKind:
    """A kind of outputs.

    Attributes:
        name: The kind's name.
        fits: Whether an image's outputs are of this kind.
        default: What is asked if the user asks nothing.
        of_class: What is asked if the user gives a class alone, by number or name.
        verdict: What the model says, in words, with so many decimals.
    """

    name: str
    fits: Callable[[TargetContext], bool]
    default: Callable[[TargetContext], NamedTarget]
    of_class: Callable[[int | str], NamedTarget]
    verdict: Callable[[TargetContext, int], str]


def output_kind(context: TargetContext) -> OutputKind:
    """Return what kind of outputs a model gives.

    Raises:
        TargetError: If it is none of `KINDS`.
    """
    kind = next((kind for kind in KINDS if kind.fits(context)), None)
    if kind is None:
        shape = tuple(context.outputs.shape)
        raise TargetError(
            f"the model's outputs for an image have shape {shape}, which are neither classes, "
            "boxes, maps nor steps: say which output to explain, such as value:"
            f"{','.join('0' * len(shape))}"
        )
    return kind


def _are_maps(context: TargetContext) -> bool:
    with suppress(TargetError):
        height, width = score_maps(context).shape[1:]
        # Of two dimensions alone, which may be steps and classes, the sides must be the image's.
        down, across = context.size
        return context.outputs.dim() > 2 or height * across == width * down
    return False


def _are_steps(context: TargetContext) -> bool:
    return sum(size > 1 for size in context.outputs.shape) == 2


def _said_boxes(context: TargetContext, decimals: int) -> str:
    found = boxes_in(context)
    best = {box.index: box.probability for box in reversed(found)}
    counts = Counter(box.index for box in found)
    words = [
        f"{context.class_name(index)} ({best[index]:.{decimals}%})"
        if count == 1
        else f"{count} × {context.class_name(index)} (up to {best[index]:.{decimals}%})"
        for index, count in counts.items()
    ]
    if found[0].probability < LEAST_PROBABILITY:
        return f"no sure box, most likely {words[0]}"
    return f"found {_listed(words)}"


def _said_maps(context: TargetContext, decimals: int) -> str:
    scores = score_maps(context)
    predicted = predicted_classes(scores)
    total = predicted.numel()
    if len(scores) == 1:
        return f"marked {int((predicted == 0).sum()) / total:.{decimals}%} of the image"
    counts = torch.bincount(predicted.flatten(), minlength=len(scores))
    order = [k for k in counts.argsort(descending=True, stable=True).tolist() if counts[k]]
    words = [f"{context.class_name(k)} {int(counts[k]) / total:.{decimals}%}" for k in order]
    return f"predicted areas: {_listed(words)}"


def _said_steps(context: TargetContext, _: int) -> str:
    found = read_characters(step_scores(context))
    if not found:
        return "read nothing"
    names = [context.class_name(index) for _, index in found]
    if all(len(name) == 1 for name in names):
        return f"read “{''.join(names)[:MOST_CHARACTERS].replace(SPACE, ' ')}”"
    return f"read {_listed(names)}"


def _first_character(context: TargetContext) -> NamedTarget:
    if not read_characters(step_scores(context)):
        raise TargetError("the model reads nothing in this image: say which step to explain")
    return Step(character=0)


def _listed(words: Sequence[str]) -> str:
    more = len(words) - MOST_SAID
    return ", ".join(words[:MOST_SAID]) + (f" and {more} more" if more > 0 else "")


def _step_needs_position(text: int | str) -> NamedTarget:
    raise TargetError(
        f"the model reads a class at each of several steps: say at which, such as step:0={text}, "
        "or step:#0 for the first character that is read"
    )


KINDS = (
    OutputKind("boxes", is_detector, lambda _: Box(0), Box, _said_boxes),
    OutputKind("map", _are_maps, lambda _: Region(), Region, _said_maps),
    OutputKind("steps", _are_steps, _first_character, _step_needs_position, _said_steps),
)
"""All kinds of outputs; the first that fits is taken."""
