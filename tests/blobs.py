"""Planted blobs: volumes, signals, images of ten bands and tables with something in one place, and
small networks that are trained to find it.

Every input of class 1 has a bright blob, and every input of class 2 a dark one, somewhere in noise;
class 0 has none. The networks learn in seconds.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

SIDE = 32
LENGTH = 1000
FEATURES = 30
CLASSES = 3
STRENGTH = 3.0


@dataclass(frozen=True)
class Planted:
    """Inputs, their classes, and the place of each blob: where it begins and ends on every axis."""

    inputs: Tensor
    classes: Tensor
    start: Tensor
    stop: Tensor

    def inside(self, row: int, *, grown: int = 0) -> Tensor:
        """A mask of a row's blob, grown by so many pixels on each side."""
        mask = torch.zeros(self.inputs.shape[2:], dtype=torch.bool)
        ends = zip(self.start[row].tolist(), self.stop[row].tolist(), strict=True)
        mask[tuple(slice(max(0, first - grown), last + grown) for first, last in ends)] = True
        return mask


def planted(
    size: tuple[int, ...], side: int, count: int, seed: int, *, channels: int = 1, bright: int = 1
) -> Planted:
    """Noise with a box of `side` pixels that is brighter or darker, at random places.

    The box is in the last `bright` of the channels.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, channels, *size, generator=generator)
    classes = torch.randint(CLASSES, (count,), generator=generator)
    most = torch.tensor(size) - side
    start = (torch.rand(count, len(size), generator=generator) * (most + 1)).long()
    for row, index in enumerate(classes.tolist()):
        corner = start[row].tolist()
        box = (row, slice(channels - bright, None), *(slice(k, k + side) for k in corner))
        inputs[box] += {0: 0.0, 1: STRENGTH, 2: -STRENGTH}[index]
    return Planted(inputs, classes, start, start + side)


BLOB = 7
PULSE = 40


def volumes(count: int = 16, seed: int = 1) -> Planted:
    """Volumes of 32³ with a cube of 7³."""
    return planted((SIDE, SIDE, SIDE), BLOB, count, seed)


def signals(count: int = 16, seed: int = 1) -> Planted:
    """Signals of 1000 moments with a pulse of 40."""
    return planted((LENGTH,), PULSE, count, seed)


def bands(count: int = 16, seed: int = 1) -> Planted:
    """Images of ten bands with a square of 7², which the last three bands have."""
    return planted((SIDE, SIDE), BLOB, count, seed, channels=10, bright=3)


@cache
def bands_network() -> nn.Module:
    """A 2-D network that finds the squares."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(10, 8, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )
    return _train(model, bands(256, seed=0), steps=80)


@cache
def volume_network() -> nn.Module:
    """A 3-D network that finds the cubes."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv3d(1, 4, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv3d(4, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool3d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )
    return _train(model, volumes(192, seed=0), steps=60)


@cache
def signal_network() -> nn.Module:
    """A 1-D network that finds the pulses."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(1, 8, 15, stride=3, padding=7),
        nn.ReLU(),
        nn.Conv1d(8, 8, 7, padding=3),
        nn.ReLU(),
        nn.AdaptiveMaxPool1d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )
    return _train(model, signals(256, seed=0), steps=80)


@cache
def table_network() -> nn.Module:
    """A network of rows of a table: the class is the sign of three features' sum."""
    torch.manual_seed(0)
    rows = torch.randn(512, FEATURES)
    total = rows[:, :3].sum(1)
    classes = torch.where(total.abs() < 1, 0, torch.where(total > 0, 1, 2))
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    return _train(model, Planted(rows, classes, classes, classes), steps=150)


def _train(model: nn.Module, data: Planted, steps: int) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        batch = torch.randint(len(data.inputs), (24,), generator=generator)
        optimiser.zero_grad()
        functional.cross_entropy(model(data.inputs[batch]), data.classes[batch]).backward()
        optimiser.step()
    return model.eval()
