"""Targets as text, on the command line and in files: `target_from_text` reads what `text` wrote.

    class:cat              margin:cat>dog         margin:cat>rivals
    value:2                step:3, step:3=a       step:#2 (the third character)
    region:cat             region:cat@box=40,30,90,120
    region:cat@point=64,80 region:cat@mask=mask.png
    box:0                  box:cat                box:cat@near=64,80
    box:class=7 (the strongest box of class 7)
    similarity:image=b.jpg similarity:prompt=a cat

Weighted sums are written as `1*class:cat + -0.5*class:dog`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from dmbp.errors import TargetError, require_known
from dmbp.linear.class_difference import RIVALS
from dmbp.linear.named_target import NamedTarget, WeightedTargets
from dmbp.targets.boxes import Box
from dmbp.targets.regions import Region, unpacked_mask
from dmbp.targets.scores import Class, Margin, Similarity, Step, Value

LONGEST_NUMBER = 9
"""The most digits of a number in a target."""


def target_from_text(text: str, *, mask: Callable[[str], Any] = unpacked_mask) -> NamedTarget:
    """Return the target that a text stands for.

    Args:
        text: Such as `region:cat@box=40,30,90,120`; see the module.
        mask: Reads the mask of a region, by default one that dmbp wrote into the text itself.

    Raises:
        TargetError: If the text is no target.
    """
    terms = _terms(text)
    if len(terms) > 1:
        return WeightedTargets(tuple(_weighted(part, mask) for part in terms))
    if re.match(r"\s*-?[\d.]+(e[-+]?\d+)?\*", text):
        return WeightedTargets((_weighted(text, mask),))
    kind, colon, rest = text.strip().partition(":")
    if not colon:
        raise TargetError(f"{text!r} is no target: write one as KIND:WHAT, such as class:cat")
    require_known("kind of target", kind, KINDS, error=TargetError)
    return KINDS[kind](rest.strip(), mask)


def is_target_text(text: str) -> bool:
    """Return whether a text names a kind of target, or is a weighted sum."""
    kind, colon, _ = text.strip().partition(":")
    return bool(colon) and kind.rpartition("*")[2].strip() in KINDS


def _terms(text: str) -> list[str]:
    """Return the terms of a sum; a plus in a prompt or in a file's name does not end it."""
    terms: list[str] = []
    for part in text.split(" + "):
        if terms and "similarity:" in terms[-1] and not is_target_text(part):
            terms[-1] += f" + {part}"
        else:
            terms.append(part)
    return terms


def _weighted(text: str, mask: Callable[[str], Any]) -> tuple[float, NamedTarget]:
    weight, star, rest = text.partition("*")
    if not star or ":" in weight:
        return 1.0, target_from_text(text, mask=mask)
    try:
        return float(weight), target_from_text(rest, mask=mask)
    except ValueError as error:
        raise TargetError(f"the weight {weight!r} of {rest!r} is not a number") from error


def class_from_text(text: str) -> int | str:
    """Return a class by number or name.

    Raises:
        TargetError: If the text is empty.
    """
    if not text:
        raise TargetError("the name of a class is empty")
    return int(text) if re.fullmatch(rf"\d{{1,{LONGEST_NUMBER}}}", text) else text


def _numbers(text: str, count: int, what: str) -> tuple[float, ...]:
    parts = text.split(",")
    try:
        if len(parts) != count:
            raise ValueError(text)
        return tuple(float(part) for part in parts)
    except ValueError as error:
        example = ",".join(("40", "30", "90", "120")[:count])
        raise TargetError(f"{what} is {count} numbers such as {example}, not {text!r}") from error


def _margin(text: str, _: Any) -> Margin:
    subject, arrow, over = text.partition(">")
    if not arrow:
        raise TargetError(
            f"a margin is written as margin:cat>dog or margin:cat>rivals, not {text!r}"
        )
    other = RIVALS if over == RIVALS else class_from_text(over.strip())
    return Margin(class_from_text(subject.strip()), other)


def _whole(text: str, what: str) -> int:
    if not re.fullmatch(rf"\d{{1,{LONGEST_NUMBER}}}", text):
        raise TargetError(f"{what} is a whole number from 0 on, not {text!r}")
    return int(text)


def _value(text: str, _: Any) -> Value:
    positions = tuple(_whole(part.strip(), "a value's position") for part in text.split(","))
    (first, *others) = positions
    return Value(positions if others else first)


def _step(text: str, _: Any) -> Step:
    where, equals, subject = text.partition("=")
    chosen = class_from_text(subject.strip()) if equals else None
    if where.startswith("#"):
        return Step(subject=chosen, character=_whole(where[1:], "the number of a character"))
    return Step(_whole(where.strip(), "a step"), chosen)


def _region(text: str, mask: Callable[[str], Any]) -> Region:
    subject, at, where = text.partition("@")
    chosen = class_from_text(subject.strip()) if subject.strip() else None
    if not at:
        return Region(chosen)
    kind, _, place = where.partition("=")
    if kind == "mask":
        return Region(chosen, mask=mask(place))
    counts: Mapping[str, int] = {"box": 4, "point": 2}
    require_known("place of a region", kind, (*counts, "mask"), error=TargetError)
    numbers: Any = _numbers(place, counts[kind], f"the {kind} of a region")
    return Region(chosen, **{kind: numbers})


def _box(text: str, _: Any) -> Box:
    which, at, where = text.partition("@")
    is_class = which.startswith("class=")
    which = which.removeprefix("class=").strip()
    chosen = class_from_text(which) if which or is_class else None
    chosen = str(chosen) if is_class else chosen
    if not at:
        return Box(chosen)
    kind, _, place = where.partition("=")
    require_known("place of a box", kind, ("near",), error=TargetError)
    near: Any = _numbers(place, 2, "the point that a box is near")
    return Box(None if chosen is None else str(chosen), near=near)


KINDS: Mapping[str, Callable[[str, Callable[[str], Any]], NamedTarget]] = {
    "class": lambda text, _: Class(class_from_text(text)),
    "margin": _margin,
    "value": _value,
    "step": _step,
    "region": _region,
    "box": _box,
    "similarity": lambda text, _: Similarity.read(text),
}
"""How each kind of target is read. A target is added with a line here."""
