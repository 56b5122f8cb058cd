"""Scenes of textured shapes on a textured ground, with a rule that says what the shapes mean.

There are twelve kinds of shapes: four textures in three colours. Each class c has a kind A_c that
speaks for it and a kind B_c that speaks against it; the other four kinds mean nothing. The log odds
of class c are

    −2 + 4 · [A_c is there] − 4 · [B_c is there]

so the class is more likely than not if there is an A_c and no B_c, and each of the two has its
effect whether or not the other is there. Every texture and every colour occurs among the A's,
the B's and the distractors, so neither alone says anything; outline, place, size, shade, phase and
ground are drawn independently of the kind.

    >>> scene = draw_scene(numpy.random.default_rng(0))
    >>> render(scene).shape, mask_of(scene.things[0]).shape
    ((96, 96, 3), (96, 96))
"""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[numpy.float32]
Mask = NDArray[numpy.bool_]

SIDE = 96
CLASSES = 4
BASE, EFFECT = -2.0, 4.0
"""The log odds of a class without evidence, and how much A_c adds and B_c takes away."""

SIZES = (20, 30)
"""A shape's side: a fifth to a third of the image's."""

GAP = 2
"""Pixels of ground between the boxes of two shapes, at least."""

TEXTURES = ("rows", "columns", "checks", "slants")
HUES = (0.02, 0.36, 0.64)
"""Red, green and blue; each shape's hue is up to `HUE_JITTER` away."""

HUE_JITTER = 0.06


@dataclass(frozen=True)
class Kind:
    """What a shape means: the index of its texture and of its hue."""

    texture: int
    hue: int


def _kind(texture: int, role: int) -> Kind:
    """Return the kind of a texture that has a role: 0 for an A, 1 for a B, 2 for a distractor."""
    return Kind(texture, (role - texture) % len(HUES))


FOR = tuple(_kind(c, 0) for c in range(CLASSES))
AGAINST = tuple(_kind(texture, 1) for texture in (2, 3, 1, 0))  # unlike A_c in texture and in hue
NEUTRAL = tuple(_kind(c, 2) for c in range(CLASSES))


def _disc(y: Numbers, x: Numbers) -> Mask:
    return y**2 + x**2 <= 1


def _square(y: Numbers, x: Numbers) -> Mask:
    return numpy.maximum(abs(y), abs(x)) <= 0.9


def _diamond(y: Numbers, x: Numbers) -> Mask:
    return abs(y) + abs(x) <= 1.15


def _triangle(y: Numbers, x: Numbers) -> Mask:
    return (abs(x) <= (y + 1.1) / 2) & (y <= 0.9)


OUTLINES: tuple[Callable[[Numbers, Numbers], Mask], ...] = (_disc, _square, _diamond, _triangle)


@dataclass(frozen=True)
class Thing:
    """A shape: its kind, and everything that is drawn independently of it."""

    kind: Kind
    top: int
    left: int
    size: int
    outline: int
    hue: float
    saturation: float
    bright: float
    dark: float
    period: float
    phase: tuple[float, float]
    rising: bool


@dataclass(frozen=True)
class Scene:
    """Shapes that do not overlap, on a ground that its seed determines."""

    things: tuple[Thing, ...]
    ground: int

    def without(self, index: int) -> Scene:
        """Return the scene with one shape removed: the ground shows in its place."""
        return Scene(self.things[:index] + self.things[index + 1 :], self.ground)

    def find(self, kind: Kind) -> int | None:
        """Return the index of the shape of a kind, or None."""
        return next((k for k, thing in enumerate(self.things) if thing.kind == kind), None)


def log_odds(scene: Scene) -> list[float]:
    """Return the log odds of every class according to the rule."""
    kinds = {thing.kind for thing in scene.things}
    return [
        BASE + EFFECT * (FOR[c] in kinds) - EFFECT * (AGAINST[c] in kinds) for c in range(CLASSES)
    ]


def draw_scene(random: numpy.random.Generator, both: int | None = None) -> Scene:
    """Return a random scene.

    Two of the classes may have their shapes in it: each has A only, B only, both or neither, with
    equal probability. One or two distractors are added.

    Args:
        random: Draws everything.
        both: A class that surely has both its A and its B.
    """
    first, second = random.permutation(CLASSES)[:2]
    if both is not None:
        first, second = both, (both + random.integers(1, CLASSES)) % CLASSES
    states = random.integers(0, 2, (2, 2)).astype(bool)
    if both is not None:
        states[0] = True
    kinds: list[Kind] = []
    for c, (has_a, has_b) in zip((first, second), states, strict=True):
        kinds += [FOR[c]] * int(has_a) + [AGAINST[c]] * int(has_b)
    neutral = random.permutation(len(NEUTRAL))[: random.integers(1, 3)]
    kinds += [NEUTRAL[k] for k in neutral]
    return Scene(_place(kinds, random), int(random.integers(2**31)))


def _place(kinds: Sequence[Kind], random: numpy.random.Generator) -> tuple[Thing, ...]:
    """Return a shape of each kind, at random places that do not overlap.

    If a place cannot be found, all places and sizes are drawn again, but not the kinds: what is in
    a scene must not depend on what happens to fit.
    """
    while True:
        boxes: list[tuple[int, int, int]] = []
        for _ in kinds:
            for _ in range(30):
                size = int(random.integers(SIZES[0], SIZES[1] + 1))
                top, left = (int(k) for k in random.integers(0, SIDE - size + 1, 2))
                if all(
                    max(top - t - s, t - top - size, left - m - s, m - left - size) >= GAP
                    for t, m, s in boxes
                ):
                    boxes.append((top, left, size))
                    break
        if len(boxes) == len(kinds):
            break
    return tuple(_thing(kind, box, random) for kind, box in zip(kinds, boxes, strict=True))


def _thing(kind: Kind, box: tuple[int, int, int], random: numpy.random.Generator) -> Thing:
    return Thing(
        kind,
        *box,
        outline=int(random.integers(len(OUTLINES))),
        hue=(HUES[kind.hue] + random.uniform(-HUE_JITTER, HUE_JITTER)) % 1,
        saturation=random.uniform(0.55, 0.95),
        bright=random.uniform(0.7, 1.0),
        dark=random.uniform(0.15, 0.4),
        period=random.uniform(4.5, 6.5),
        phase=(random.uniform(), random.uniform()),
        rising=bool(random.integers(2)),
    )


_AXIS = numpy.arange(SIDE, dtype=numpy.float32)


def mask_of(thing: Thing) -> Mask:
    """Return the pixels that a shape covers."""
    half = thing.size / 2
    y = (_AXIS + 0.5 - thing.top - half)[:, None] / half
    x = (_AXIS + 0.5 - thing.left - half)[None, :] / half
    inside = numpy.maximum(abs(y), abs(x)) <= 1
    return OUTLINES[thing.outline](y, x) & inside


def _texture(thing: Thing) -> Numbers:
    """Return a shape's texture over the whole image, between 0 (dark) and 1 (bright)."""
    y = _AXIS[:, None] / thing.period + thing.phase[0]
    x = _AXIS[None, :] / thing.period + thing.phase[1]
    name = TEXTURES[thing.kind.texture]
    if name == "checks":
        wave = 2 * _wave(x) * _wave(y)
    elif name == "slants":
        wave = _wave((x + y if thing.rising else x - y) / 2**0.5)
    else:
        wave = _wave(y + 0 * x if name == "rows" else x + 0 * y)
    return numpy.clip(0.5 + wave, 0, 1)


def _wave(turns: Numbers) -> Numbers:
    return numpy.sin(2 * numpy.pi * turns)


def _ground(seed: int) -> Numbers:
    """Return noise of all scales (its amplitude falls with frequency) of a random colour."""
    random = numpy.random.default_rng(seed)
    across = numpy.fft.rfftfreq(SIDE)[None, :]
    down = numpy.fft.fftfreq(SIDE)[:, None]
    amplitude = 1 / numpy.maximum(numpy.hypot(down, across), 1 / SIDE)
    common, *colours = (
        numpy.fft.irfft2(numpy.fft.rfft2(random.normal(size=(SIDE, SIDE))) * amplitude)
        for _ in range(4)
    )
    noise = numpy.stack([common + colour / 2 for colour in colours], 2)
    noise *= random.uniform(0.08, 0.16) / noise.std()
    return (random.uniform(0.3, 0.7) + random.uniform(-0.1, 0.1, 3) + noise).astype(numpy.float32)


def render(scene: Scene) -> NDArray[numpy.uint8]:
    """Return the picture of a scene, (height, width, 3)."""
    picture = _ground(scene.ground)
    for thing in scene.things:
        mask = mask_of(thing)
        bright, dark = (
            numpy.array(colorsys.hsv_to_rgb(thing.hue, thing.saturation, value))
            for value in (thing.bright, thing.dark)
        )
        share = _texture(thing)[mask][:, None]
        picture[mask] = dark + (bright - dark) * share
    return (numpy.clip(picture, 0, 1) * 255).round().astype(numpy.uint8)


def as_inputs(pictures: Sequence[NDArray[numpy.uint8]] | NDArray[numpy.uint8] | Tensor) -> Tensor:
    """Return pictures as the networks' inputs: (batch, 3, height, width), about −2 to 2."""
    pixels = pictures if isinstance(pictures, Tensor) else torch.as_tensor(numpy.stack(pictures))
    return (pixels.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25
