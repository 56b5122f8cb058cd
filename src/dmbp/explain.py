"""What `dmbp explain` does: photos in, a picture and a JSON file for each out."""

import os
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rich.console import Console
from rich.progress import Progress

from dmbp import __version__
from dmbp.attribution import DMBP
from dmbp.data import photo_paths, read_photo
from dmbp.errors import OutputError, PhotoError
from dmbp.explanation import Explanation
from dmbp.model_choice import ModelChoice
from dmbp.models import Classifier
from dmbp.photo_question import ask
from dmbp.render import PanelStyle, report_html, write_whole

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
    seen = classifier.preprocessing.described()
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
    question = ask(photo, name, classifier, wanted)
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
