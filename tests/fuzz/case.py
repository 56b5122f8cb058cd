"""A try of the fuzzer: a command line, and the ordinary files from which tries are made."""

import os
import random
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from dmbp.bench.plan import read_plan
from dmbp.bench.run.driver import RunOptions, run_plan
from tests.bench.tiny import make_photos
from tests.cli.networks import net
from tests.models.networks import export_onnx

MODEL = "tests.cli.networks:good"
"""A network of three classes for 32×32 pixels; files of models and weights are made of it."""

FAST = ("--preset", "fast", "--iterations", "2")

MARK = "executed"
"""The file that exists once a model file has run code."""


@dataclass(frozen=True)
class Case:
    """A command line, run in a folder of its own that holds the files it names.

    `note` says what was done to them.
    """

    arguments: list[str]
    note: str


@dataclass(frozen=True)
class Stock:
    """A folder of ordinary files: every one of them works before it is damaged."""

    folder: Path

    def path(self, name: str) -> Path:
        """Return the path of a file."""
        return self.folder / name

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        return self.path(name).read_bytes()


PLAN = """
methods = ["random", {{ name = "gradient", label = "G" }}]
[[tasks]]
name = "tiny"
dataset = "{dataset}"
path = "{path}"
model = "tests.bench.tiny:tiny"
metrics = ["IM"]
steps = 2
first = 2
"""


def make_stock(folder: Path) -> Stock:
    """Write one ordinary file of every kind into a new folder."""
    folder.mkdir(parents=True)
    Image.frombytes("RGB", (40, 36), random.Random(0).randbytes(40 * 36 * 3)).save(
        folder / "photo.png"
    )
    model = net().eval()
    torch.save(model.state_dict(), folder / "net.pth")
    _write_safetensors(model, folder / "net.safetensors")
    image = torch.zeros(1, 3, 32, 32)
    torch.export.save(torch.export.export(model, (image,)), folder / "net.pt2")
    dynamic = torch.export.export(
        model, (torch.zeros(2, 3, 32, 32),), dynamic_shapes=({0: torch.export.Dim.AUTO},)
    )
    torch.export.save(dynamic, folder / "dynamic.pt2")
    export_onnx(model, folder / "net.onnx", 32, dynamic=False)
    export_onnx(model, folder / "dynamic.onnx", 32, dynamic=True)
    (folder / "classes.txt").write_text("cat\ndog\nhamster\n")
    make_photos(folder / "photos", 2)
    (folder / "plan.toml").write_text(PLAN.format(dataset="folder", path="photos"))
    run_plan(read_plan(folder / "plan.toml"), folder / "store.sqlite", RunOptions())
    return Stock(folder)


def _write_safetensors(model: torch.nn.Module, path: Path) -> None:
    from safetensors.torch import save_file

    save_file(model.state_dict(), path)


def write_odd_files(folder: Path) -> None:
    """Write what is not a regular file: a pipe, a link to itself, a folder."""
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    (folder / "folder").mkdir()


def forget(folder: Path) -> None:
    """Undo what importing a module from a folder leaves in this process."""
    with suppress(ValueError):
        sys.path.remove(str(folder))
