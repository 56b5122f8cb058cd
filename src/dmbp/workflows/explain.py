"""One photo's answer, and everything that can be written about it.

What `dmbp explain` does: photos in, a picture and a JSON file for each out.
"""

import json
import os
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image
from rich.console import Console
from rich.progress import Progress

from dmbp import __version__
from dmbp.attribution import DMBP
from dmbp.baseline import baseline_for
from dmbp.data import photo_paths, read_photo
from dmbp.decompose import Decomposition
from dmbp.errors import OutputError, PhotoError
from dmbp.metrics import area, insertion_curve, pixel_ranks, replace_pixels
from dmbp.metrics.insertion import STEPS
from dmbp.models import Classifier
from dmbp.render import (
    PanelRow,
    PanelStyle,
    ReportPhoto,
    ReportTarget,
    draw_panel,
    figure_bytes,
    insertion_gif,
    panel_rows,
    report_html,
    write_whole,
)
from dmbp.workflows.prediction import ModelChoice, Prediction, predict


@dataclass(frozen=True)
class Explanation:
    """A photo, the classes asked about, and a decomposition with a row for each."""

    question: Prediction
    decomposition: Decomposition
    settings: Mapping[str, str | int | float]
    seconds: dict[str, float]

    def sentence(self) -> str:
        """What was predicted and what was explained."""
        asked = ", ".join(self.question.named(target) for target in self.question.targets)
        return f"{self.question.verdict()}; explained {asked}"

    def picture(self, style: PanelStyle | None = None, *, suffix: str = ".png") -> bytes:
        """The panel as a file's content."""
        return figure_bytes(draw_panel(self._rows(), style), suffix)

    def record(self) -> bytes:
        """Terms, exactness, settings and timings as a JSON file's content."""
        d = self.decomposition
        about = {
            "photo": self.question.name,
            "model": self.question.classifier.name,
            "weights": self.question.classifier.weights,
            "preprocessing": self.question.classifier.preprocessing.as_dict(),
            "predicted": self.question.about(self.question.best),
            "targets": [
                {
                    **self.question.about(target),
                    "terms": {
                        "output": d.output[row].item(),
                        "positive": d.positive_output[row].item(),
                        "negative": d.negative_output[row].item(),
                        "nuisance": d.nuisance_output[row].item(),
                    },
                }
                for row, target in enumerate(self.question.targets)
            ],
            "exactness": d.exactness,
            "approximation_error": d.approximation_error,
            "settings": dict(self.settings),
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
            "dmbp": __version__,
            "torch": torch.__version__,
        }
        return (json.dumps(about, indent=2, ensure_ascii=False) + "\n").encode()

    def raw_files(self, folder: Path, stem: str) -> dict[Path, bytes]:
        """The attributions (targets, channel, height, width) as `.npy`, and a 16-bit PNG a target.

        In the PNG mid-grey (32768) is zero and the largest magnitude of the map is 32767 from it.
        """
        attribution = self.decomposition.attribution.cpu().float().numpy()
        buffer = BytesIO()
        numpy.save(buffer, attribution)
        files = {folder / f"{stem}.npy": buffer.getvalue()}
        for target, pixels in zip(self.question.targets, attribution.sum(1), strict=True):
            largest = max(float(numpy.abs(pixels).max()), 1e-30)
            levels = numpy.round(32768 + 32767 * pixels / largest).astype(numpy.uint16)
            buffer = BytesIO()
            Image.fromarray(levels).save(buffer, "PNG")
            files[folder / f"{stem}-{self.question.slug(target)}-map.png"] = buffer.getvalue()
        return files

    def gif_files(self, folder: Path, stem: str) -> dict[Path, bytes]:
        """For every target, a GIF of its strongest pixels being put into a blurred photo."""
        d = self.decomposition
        ranks, blurred = pixel_ranks(d.attribution, d.inputs), baseline_for(d.inputs, "blur")
        fractions = torch.linspace(0, 1, STEPS + 1)
        files: dict[Path, bytes] = {}
        for row, target in enumerate(self.question.targets):
            one = slice(row, row + 1)
            frames = [
                self.question.shown(
                    replace_pixels(d.inputs[one], blurred[one], ranks[one], fraction)[0]
                )
                for fraction in fractions[:, None]
            ]
            called = self.question.classifier.class_name(target)
            gif = insertion_gif(frames, self._insertion[row], called)
            files[folder / f"{stem}-{self.question.slug(target)}.gif"] = gif
        return files

    def report_photo(self) -> ReportPhoto:
        """The photo's part of a report."""
        found = self.decomposition
        ends = {
            "y⁺": (found.history.positive, found.positive_output),
            "y⁻": (found.history.negative, found.negative_output),
            "y~": (found.history.nuisance, found.nuisance_output),
        }
        targets = [
            ReportTarget(
                row=panel_row,
                name=self.question.classifier.class_name(target),
                probability=self.question.probability(target),
                history={
                    name: [*before[:, row].tolist(), float(last[row])]
                    for name, (before, last) in ends.items()
                },
                insertion=self._insertion[row],
                insertion_score=float(area(torch.tensor(self._insertion[row])[None])),
                exactness=self.decomposition.exactness,
                seconds=self.seconds["explaining"],
            )
            for row, (target, panel_row) in enumerate(
                zip(self.question.targets, self._rows(), strict=True)
            )
        ]
        return ReportPhoto(self.question.name, self.question.verdict(), targets)

    @cached_property
    def _insertion(self) -> list[list[float]]:
        d = self.decomposition
        curve = insertion_curve(
            self.question.classifier.module,
            d.inputs,
            self.question.targets,
            d.attribution,
            activation=self.question.classifier.probabilities,
        )
        return curve.tolist()

    def _rows(self) -> list[PanelRow]:
        asked = self.question
        return panel_rows(
            self.decomposition,
            photos=[asked.photo] * len(asked.targets),
            photo_captions=[asked.verdict()] * len(asked.targets),
            target_captions=[f"for and against: {asked.named(k)}" for k in asked.targets],
        )


REPORT = "report.html"

BEGUN = ("preset", "objective")
"""The settings that decide what is compiled."""


@dataclass(frozen=True)
class Outputs:
    """What is written, and how it looks."""

    folder: Path
    style: PanelStyle
    suffix: str = ".png"
    report: bool = False
    raw: bool = False
    gif: bool = False

    def picture(self, stem: str) -> Path:
        """Where a photo's picture goes."""
        return self.folder / f"{stem}{self.suffix}"


@dataclass(frozen=True)
class ExplainRequest:
    """What was asked for on the command line; `settings` are DMBP's."""

    photos: list[Path]
    choice: ModelChoice
    targets: list[str]
    settings: Mapping[str, Any]
    outputs: Outputs


def explain_photos(request: ExplainRequest, *, console: Console | None) -> None:
    """Explain every photo; all photos are read once before anything is written."""
    paths = _readable(photo_paths(request.photos), given=request.photos)
    check_folder(request.outputs.folder)
    named = list(_stems(paths))
    _check_originals(paths, [request.outputs.picture(stem) for stem, _ in named])
    like = torch.zeros(1, device=request.choice.place())
    begun = {name: request.settings[name] for name in BEGUN if name in request.settings}
    DMBP.prepare(like, **begun)  # beside the model's loading and its own first run
    classifier = request.choice.load()
    explainer = DMBP(classifier.module, **request.settings)
    questions = [(stem, path, request.targets) for stem, path in named]
    explain_all(questions, classifier, explainer, request.outputs, console=console)


def _readable(paths: Sequence[Path], *, given: Sequence[Path]) -> list[Path]:
    """The photos that can be read; those of a folder that cannot are left out, with a note."""
    faults: dict[Path, str] = {}
    for path in paths:
        try:
            read_photo(path)
        except PhotoError as error:
            faults[path] = str(error)
    if faults and (set(faults) == set(paths) or not set(given).isdisjoint(faults)):
        raise PhotoError("; ".join(faults.values()))
    if faults:
        warnings.warn(f"left out: {'; '.join(faults.values())}", stacklevel=2)
    return [path for path in paths if path not in faults]


def explain_all(
    questions: Sequence[tuple[str, Path | Image.Image, Sequence[str]]],
    classifier: Classifier,
    explainer: DMBP,
    outputs: Outputs,
    *,
    console: Console | None,
) -> None:
    """Explain photos, each given as (name for its files, photo, classes asked about)."""
    answers: list[Explanation] = []
    with _progress(console, len(questions) * explainer.settings.iterations) as advance:
        for stem, source, wanted in questions:
            photo = source if isinstance(source, Image.Image) else read_photo(source)
            name = stem if isinstance(source, Image.Image) else str(source)
            answer = explain_photo(photo, name, classifier, explainer, wanted, advance)
            picture = _write(answer, outputs, stem)
            if outputs.report:
                answers.append(answer)
            if console is not None:
                console.print(f"{name}: {answer.sentence()} → {picture}")
    if outputs.report:
        page = report_html(
            [answer.report_photo() for answer in answers],
            model=classifier.name,
            settings=_described(classifier) | explainer.described(),
            versions={"dmbp": __version__, "torch": torch.__version__},
            style=outputs.style,
        )
        write_whole({outputs.folder / REPORT: page})
        if console is not None:
            console.print(f"report → {outputs.folder / REPORT}")


def _described(classifier: Classifier) -> dict[str, Any]:
    """Which weights, and how photos become inputs."""
    seen = classifier.preprocessing.as_dict()
    weights = {} if classifier.weights is None else {"weights": classifier.weights}
    return weights | {"photos": ", ".join(f"{name} {value}" for name, value in seen.items())}


def explain_photo(
    photo: Image.Image,
    name: str,
    classifier: Classifier,
    explainer: DMBP,
    wanted: Sequence[str],
    advance: Callable[[], None] | None = None,
) -> Explanation:
    """Explain one photo for the classes wanted, or for the top one."""
    started = time.perf_counter()
    question = predict(photo, name, classifier, wanted)
    read = time.perf_counter()
    decomposition = explainer.explain(
        question.inputs, target=question.targets, on_iteration=advance
    )
    seconds = {"reading": read - started, "explaining": time.perf_counter() - read}
    return Explanation(question, decomposition, explainer.described(), seconds)


def check_folder(path: Path) -> None:
    """Refuse a folder for results that cannot be one, before any work is done."""
    if path.exists() and not path.is_dir():
        raise OutputError(f"cannot write to {path}: it is a file, not a folder")
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise OutputError(f"cannot write to {path}: {existing} is a file, not a folder")
    if not os.access(existing, os.W_OK):
        raise OutputError(f"cannot write to {path}: {existing} may not be written to")


def _check_originals(photos: Sequence[Path], pictures: Sequence[Path]) -> None:
    originals = {photo.resolve() for photo in photos}
    for picture in pictures:
        if picture.resolve() in originals:
            raise OutputError(
                f"{picture} would be written over the photo itself; use another --out"
            )


def _write(answer: Explanation, outputs: Outputs, stem: str) -> Path:
    folder, picture = outputs.folder, outputs.picture(stem)
    files = {
        picture: answer.picture(outputs.style, suffix=outputs.suffix),
        folder / f"{stem}.json": answer.record(),
    }
    if outputs.raw:
        files |= answer.raw_files(folder, stem)
    if outputs.gif:
        files |= answer.gif_files(folder, stem)
    write_whole(files)
    return picture


def _stems(paths: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """File names without ending, numbered where two photos share one."""
    taken: set[str] = set()
    for path in paths:
        numbered = (f"{path.stem}-{number}" for number in count(2))
        stem = next(name for name in chain([path.stem], numbered) if name not in taken)
        taken.add(stem)
        yield stem, path


@contextmanager
def _progress(console: Console | None, total: int) -> Generator[Callable[[], None] | None]:
    """A bar that vanishes when done; nothing at all where nobody watches."""
    if console is None or not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("explaining", total=total)
        yield lambda: bar.advance(task)
