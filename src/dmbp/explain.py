"""What `dmbp explain` does: photos in, a picture and a JSON file for each out."""

import json
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from dmbp import __version__
from dmbp.attribution import DMBP
from dmbp.data import read_photo
from dmbp.decompose import Decomposition
from dmbp.errors import InputError, OutputError
from dmbp.linear.linearize import Linearizer
from dmbp.models import Classifier, load_model
from dmbp.render import draw_panel, figure_bytes, panel_rows, write_whole


@dataclass(frozen=True)
class ExplainRequest:
    """What was asked for on the command line."""

    photos: list[Path]
    model: str
    weights: Path | None
    classes: Path | None
    targets: list[str]
    preset: str
    objective: Any
    iterations: int | None
    learning_rate: float | None
    device: str
    out: Path


def explain_photos(request: ExplainRequest, *, console: Console | None) -> None:
    """Explain every photo; all photos are read once before anything is written."""
    for path in request.photos:
        read_photo(path)
    check_folder(request.out)
    device = _device(request.device)
    classifier = load_model(request.model, weights=request.weights, classes=request.classes)
    classifier.module.to(device)
    explainer = DMBP(
        classifier.module,
        preset=request.preset,
        objective=request.objective,
        iterations=request.iterations,
        learning_rate=request.learning_rate,
    )
    with progress(console, len(request.photos) * explainer.settings.iterations) as advance:
        for path, stem in zip(request.photos, _stems(request.photos), strict=True):
            photo = read_photo(path)
            explanation = explain_photo(
                photo, str(path), classifier, explainer, request.targets, advance
            )
            picture = explanation.write(request.out, stem)
            if console is not None:
                console.print(f"{path}: {explanation.sentence()} → {picture}")


def explain_photo(
    photo: Image.Image,
    name: str,
    classifier: Classifier,
    explainer: DMBP,
    wanted: list[str],
    advance: Callable[[], None] | None = None,
) -> "Explanation":
    """Explain one photo for the classes wanted, or for the top one."""
    started = time.perf_counter()
    view = classifier.preprocessing.view(photo)
    device = next(classifier.module.parameters()).device
    inputs = classifier.preprocessing.tensor(view).to(device)
    outputs = Linearizer(classifier.module).outputs(inputs)[0]
    targets = [classifier.class_index(text, outputs) for text in wanted] or [int(outputs.argmax())]
    read = time.perf_counter()
    decomposition = explainer.explain(inputs, target=targets, on_iteration=advance)
    seconds = {"reading": read - started, "explaining": time.perf_counter() - read}
    return Explanation(name, view, classifier, outputs, targets, decomposition, seconds)


@dataclass(frozen=True)
class Explanation:
    """One photo's answer."""

    name: str
    view: Image.Image
    classifier: Classifier
    outputs: Tensor
    targets: list[int]
    decomposition: Decomposition
    seconds: dict[str, float]

    def write(self, folder: Path, stem: str) -> Path:
        """Write the picture and the record; the picture's path."""
        picture = folder / f"{stem}.png"
        write_whole({picture: self.picture(), folder / f"{stem}.json": self.record()})
        return picture

    def sentence(self) -> str:
        """What was predicted and what was explained."""
        asked = ", ".join(self._named(target) for target in self.targets)
        return f"predicted {self._named(self._best())}; explained {asked}"

    def picture(self) -> bytes:
        """The panel as a PNG file's content."""
        photo = numpy.asarray(self.view, dtype=numpy.float64) / 255
        rows = panel_rows(
            self.decomposition,
            photos=[photo] * len(self.targets),
            photo_captions=[f"predicted: {self._named(self._best())}"] * len(self.targets),
            target_captions=[f"for and against: {self._named(target)}" for target in self.targets],
        )
        return figure_bytes(draw_panel(rows), ".png")

    def record(self) -> bytes:
        """Terms, exactness, settings and timings as a JSON file's content."""
        d = self.decomposition
        about = {
            "photo": self.name,
            "model": self.classifier.name,
            "predicted": self._about(self._best()),
            "targets": [
                {
                    **self._about(target),
                    "terms": {
                        "output": d.output[row].item(),
                        "positive": d.positive_output[row].item(),
                        "negative": d.negative_output[row].item(),
                        "nuisance": d.nuisance_output[row].item(),
                    },
                }
                for row, target in enumerate(self.targets)
            ],
            "exactness": d.exactness,
            "settings": d.settings.described(),
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
            "dmbp": __version__,
            "torch": torch.__version__,
        }
        return (json.dumps(about, indent=2, ensure_ascii=False) + "\n").encode()

    def _best(self) -> int:
        return int(self.outputs.argmax())

    def _probability(self, index: int) -> float:
        return float(self.classifier.probabilities(self.outputs)[index])

    def _named(self, index: int) -> str:
        return f"{self.classifier.class_name(index)} ({self._probability(index):.0%})"

    def _about(self, index: int) -> dict[str, Any]:
        return {
            "class": index,
            "name": self.classifier.class_name(index),
            "probability": self._probability(index),
        }


def check_folder(path: Path) -> None:
    """Refuse a folder for results that cannot be one, before any work is done."""
    if path.exists() and not path.is_dir():
        raise OutputError(f"cannot write to {path}: it is a file, not a folder")


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"device {name!r} is not available: {str(error).splitlines()[0]}"
        ) from error
    return device


def _stems(photos: list[Path]) -> Iterator[str]:
    """File names without ending, numbered where two photos share one."""
    seen: Counter[str] = Counter()
    for path in photos:
        seen[path.stem] += 1
        yield path.stem if seen[path.stem] == 1 else f"{path.stem}-{seen[path.stem]}"


@contextmanager
def progress(console: Console | None, total: int) -> Generator[Callable[[], None] | None]:
    """A bar that vanishes when done; nothing at all without a console."""
    if console is None:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("explaining", total=total)
        yield lambda: bar.advance(task)
