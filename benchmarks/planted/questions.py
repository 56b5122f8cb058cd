"""Questions whose answer is confirmed by intervention.

A question is an image that shows both A and B of a class, and that class. Each shape in turn is
removed, which means that the scene is rendered without it. The network follows the rule on this
image if the class's log odds

    fall by 2 or more without A             the rule says by 4
    rise by 2 or more without B             the rule says by 4
    change by 1 at most without any other   the rule says by 0

Only such questions are judged. Shapes of other classes count as distractors, like the shapes of no
class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor, nn

from benchmarks.planted.images import (
    AGAINST,
    CLASSES,
    EFFECT,
    FOR,
    Scene,
    as_inputs,
    draw_scene,
    mask_of,
    render,
)

CLEAR, SMALL = EFFECT / 2, EFFECT / 4
"""The least change of the log odds that A and B must make, and the most that others may make."""

ENOUGH = 0.9
"""A network follows the rule if this share of each kind of intervention has the right effect."""


@dataclass(frozen=True)
class Effects:
    """How much each shape adds to the log odds of a class: those with it minus those without."""

    a: float
    b: float
    distractors: tuple[float, ...]

    def confirmed(self) -> bool:
        """Return whether the network follows the rule on this image."""
        return (
            self.a >= CLEAR and self.b <= -CLEAR and all(abs(d) <= SMALL for d in self.distractors)
        )


@dataclass(frozen=True)
class Question:
    """A scene that shows both A and B of the class `target`, and the effects of its shapes."""

    scene: Scene
    target: int
    effects: Effects

    def masks(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the pixels of A, of B and of the distractors, each (height, width)."""
        a, b = _roles(self.scene, self.target)
        found = [torch.as_tensor(mask_of(thing)) for thing in self.scene.things]
        others = [mask for k, mask in enumerate(found) if k not in (a, b)]
        return found[a], found[b], torch.stack(others).any(0)


def _roles(scene: Scene, target: int) -> tuple[int, int]:
    """Return the indices of A and B."""
    a, b = scene.find(FOR[target]), scene.find(AGAINST[target])
    assert a is not None
    assert b is not None
    return a, b


@torch.no_grad()
def measure_effects(network: nn.Module, scene: Scene, target: int) -> Effects:
    """Return the effects of all shapes, each removed alone."""
    scenes = [scene, *(scene.without(k) for k in range(len(scene.things)))]
    whole, *without = network(as_inputs([render(s) for s in scenes]))[:, target].tolist()
    effects = [whole - part for part in without]
    a, b = _roles(scene, target)
    others = tuple(effect for k, effect in enumerate(effects) if k not in (a, b))
    return Effects(effects[a], effects[b], others)


def questions(network: nn.Module, seed: int) -> Iterator[Question]:
    """Yield random questions, also those on which the network does not follow the rule."""
    random = numpy.random.default_rng(seed)
    while True:
        for target in range(CLASSES):
            scene = draw_scene(random, both=target)
            yield Question(scene, target, measure_effects(network, scene, target))


@dataclass(frozen=True)
class Rates:
    """How a network follows the rule: shares of interventions with the right effect, and means."""

    a: float
    b: float
    distractors: float
    mean_a: float
    mean_b: float
    mean_distractor: float

    def follows_rule(self) -> bool:
        """Return whether enough interventions have the right effect."""
        return min(self.a, self.b, self.distractors) >= ENOUGH

    def __str__(self) -> str:
        return (
            f"without A lower by {CLEAR:g}+ in {self.a:.1%} (mean effect of A {self.mean_a:+.2f}), "
            f"without B higher by {CLEAR:g}+ in {self.b:.1%} (mean {self.mean_b:+.2f}), "
            f"without a distractor within {SMALL:g} in {self.distractors:.1%} "
            f"(mean size {self.mean_distractor:.2f})"
        )


def measure_rates(network: nn.Module, count: int, seed: int) -> Rates:
    """Return the rates over `count` random questions."""
    found = [q.effects for q, _ in zip(questions(network, seed), range(count), strict=False)]
    return rates_of(found)


def rates_of(found: list[Effects]) -> Rates:
    """Return the rates over the effects of several questions."""
    a, b = numpy.array([e.a for e in found]), numpy.array([e.b for e in found])
    others = abs(numpy.array([d for e in found for d in e.distractors]))
    return Rates(
        a=float((a >= CLEAR).mean()),
        b=float((b <= -CLEAR).mean()),
        distractors=float((others <= SMALL).mean()),
        mean_a=float(a.mean()),
        mean_b=float(b.mean()),
        mean_distractor=float(others.mean()),
    )
