"""Tiny models for which a run costs little, photos of noise for them, and plans that use both."""

import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from dmbp.bench.plan import read_plan
from dmbp.bench.report.table import table
from dmbp.bench.run.driver import RunOptions, run_plan
from dmbp.bench.store import Store
from dmbp.models import Classifier, Preprocessing

PLAN = """
methods = {methods}

[[tasks]]
name = "tiny"
dataset = "folder"
path = "photos"
model = "tests.bench.tiny:{model}"
metrics = ["IM"]
steps = 2
"""


def make_photos(root: Path, count: int) -> None:
    """Write different photos of noise in two classes."""
    for index in range(count):
        path = root / ("cat", "dog")[index % 2] / f"{index:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.frombytes("RGB", (16, 16), random.Random(index).randbytes(768)).save(path)


def make_plan(
    folder: Path,
    *,
    photos: int = 12,
    model: str = "tiny",
    methods: Sequence[str] = ("gradient", "random"),
) -> Path:
    """Write photos and a plan for them into a folder; return the plan."""
    make_photos(folder / "photos", photos)
    (folder / "plan.toml").write_text(PLAN.format(model=model, methods=list(methods)))
    return folder / "plan.toml"


def stored_rows(store: Path) -> list[tuple[object, ...]]:
    """Return everything in a store but the seconds; a key that is in it twice gives two rows."""
    return [(row.cell.key, row.scores, row.curves, row.failure) for row in Store(store).rows()]


def run_undisturbed(plan: Path, **options: Any) -> tuple[list[tuple[object, ...]], str]:
    """Return the rows and the table of an uninterrupted run in this process."""
    store = plan.parent / "undisturbed.sqlite"
    run_plan(read_plan(plan), store, RunOptions(**options))
    return stored_rows(store), table(read_plan(plan), store)


def run_to_table(plan: Path, store: str, **options: Any) -> str:
    """Run a plan into a store beside it; return its table."""
    run_plan(read_plan(plan), plan.parent / store, RunOptions(**options))
    return table(read_plan(plan), plan.parent / store)


def mark(photo: Path) -> None:
    """Replace a photo by one on which `deadly`, `hungry`, `broken` and `undefined` fail."""
    Image.new("RGB", (16, 16), "red").save(photo)


class Tiny(nn.Sequential):
    """One convolution; the same weights every time."""

    def __init__(self) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            super().__init__(nn.Conv2d(3, 4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 144, 2))


class Deadly(Tiny):
    """Kills a worker's process on a marked photo, but not the driver's."""

    def forward(self, inputs: Tensor) -> Tensor:
        if _marked(inputs) and parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(inputs)


class Hungry(Tiny):
    """Runs out of memory on a marked photo."""

    def forward(self, inputs: Tensor) -> Tensor:
        if _marked(inputs):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 90.00 GiB.")
        return super().forward(inputs)


class Broken(Tiny):
    """Breaks its device on a marked photo."""

    def forward(self, inputs: Tensor) -> Tensor:
        if _marked(inputs):
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        return super().forward(inputs)


class Undefined(Tiny):
    """Returns NaN for a marked photo, and whatever else is in its batch."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * (torch.nan if _marked(inputs) else 1.0)


class Slow(Tiny):
    """Takes long enough that something can happen meanwhile."""

    def forward(self, inputs: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            time.sleep(0.03)
        return super().forward(inputs)


class Likely(Tiny):
    """Returns probabilities."""

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.sigmoid(super().forward(inputs))


def _marked(inputs: Tensor) -> bool:
    if torch.compiler.is_compiling():  # there is no photo during a capture
        return False
    return bool((inputs.amax((2, 3)) == inputs.amin((2, 3))).all(1).any())


def tiny() -> Classifier:
    return _classifier(Tiny())


def deadly() -> Classifier:
    return _classifier(Deadly())


def hungry() -> Classifier:
    return _classifier(Hungry())


def broken() -> Classifier:
    return _classifier(Broken())


def undefined() -> Classifier:
    return _classifier(Undefined())


def slow() -> Classifier:
    return _classifier(Slow())


def likely() -> Classifier:
    return _classifier(Likely())


def grey() -> Classifier:
    own = _classifier(nn.Sequential(nn.Conv2d(1, 3, 1), Tiny()))
    return replace(own, preprocessing=Preprocessing(resize=16, crop=16, mean=(0.5,), std=(0.5,)))


def _classifier(module: nn.Module) -> Classifier:
    return Classifier("tiny", module.eval(), Preprocessing(resize=16, crop=16), ("cat", "dog"))
