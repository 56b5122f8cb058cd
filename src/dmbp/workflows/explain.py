"""`dmbp explain`: explain photos, and write a picture and a JSON file for each.

`explain_photos` checks everything that can be checked cheaply (the photos' headers, the folder for
the results, the device), loads the model, and hands the photos to `explain_all`, which decodes and
explains them one at a time. Each gives an `Explanation`, from which all files are written.
"""

import os
import stat
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from dmbp.attribution import DMBP
from dmbp.data import check_photo, is_array_file, photo_paths
from dmbp.data.arrays import MAX_BYTES
from dmbp.display import encode_figure
from dmbp.errors import InputError, OutputError, PhotoError
from dmbp.files import LONGEST_NAME, NAME_TOO_LONG, check_file, reason, shown, write_all_or_none
from dmbp.models import Classifier
from dmbp.render import REPORT_NAME, PanelStyle, ReportWriter
from dmbp.workflows.arrays import ArrayExplanation, ArrayInput
from dmbp.workflows.explained_target import Asked
from dmbp.workflows.explanation import Explanation, PhotoExplanation, report_heading
from dmbp.workflows.prediction import InputPrediction, ModelSpec, Prediction
from dmbp.workflows.sources import InputQuestion, Photo, read_inputs

LONGEST_STEM = 110
"""The most bytes of the photo's name in the names of its results."""


@dataclass(frozen=True)
class OutputOptions:
    """Which files are written, where, and how pictures look."""

    folder: Path
    style: PanelStyle
    suffix: str = ".png"
    report: bool = False
    raw: bool = False
    gif: bool = False
    whole_photo: bool = False
    bands: Sequence[int] | None = None

    def picture(self, stem: str) -> Path:
        """Return the path of a photo's picture."""
        return self.folder / f"{stem}{self.suffix}"


def explain_photos(
    files: Sequence[Path],
    model: ModelSpec,
    output: OutputOptions,
    *,
    targets: Sequence[Asked] = (),
    rather_than: Sequence[str] = (),
    settings: Mapping[str, Any],
    console: Console | None,
) -> None:
    """Explain photos and other inputs, given as files or folders, with DMBP's `settings`.

    `targets` and `rather_than` are as for `predict`.

    Raises:
        PhotoError: If a photo given by name, or every photo, cannot be read. If its header shows
            that, nothing is written. Damaged pixels are noticed only when the photo is decoded;
            the other photos are then still explained.
        OutputError: If the files cannot be written, or a picture would overwrite a photo.
    """
    paths = _check_photos(photo_paths(files), arguments=files)
    _check_outputs(paths, output)
    check_folder(output.folder)
    stems = dict(_unique_stems(paths))
    _check_no_overwrite(paths, [output.picture(stem) for stem in stems])
    classifier, explainer = _load(model, settings)
    damaged: dict[Path, str] = {}
    question = InputQuestion(targets, rather_than, output.bands)
    photos = _decode_inputs(stems, classifier, question, damaged)
    explain_all(photos, classifier, explainer, output, total=len(stems), console=console)
    _report_unreadable(damaged, paths, arguments=files)


def _check_photos(paths: Sequence[Path], *, arguments: Sequence[Path]) -> list[Path]:
    """Check the photos' headers, and return the paths of those that can be read."""
    errors: dict[Path, str] = {}
    for path in paths:
        try:
            check_input(path)
        except PhotoError as error:
            errors[path] = str(error)
    _report_unreadable(errors, paths, arguments=arguments)
    return [path for path in paths if path not in errors]


def check_input(path: Path) -> None:
    """Raise a `PhotoError` if a file is neither a photo nor one of numbers, before it is read."""
    if is_array_file(path):
        check_file(path, what="file", error=PhotoError, most_bytes=MAX_BYTES)
    else:
        check_photo(path)


def _check_outputs(paths: Sequence[Path], output: OutputOptions) -> None:
    """Raise an `InputError` if files that only photos have were asked for."""
    arrays = [path for path in paths if is_array_file(path)]
    for name, is_wanted in (("--gif", output.gif), ("--whole-photo", output.whole_photo)):
        if arrays and is_wanted:
            raise InputError(f"{name} is for photos, and {shown(arrays[0])} is none")


def _report_unreadable(
    errors: Mapping[Path, str], paths: Sequence[Path], *, arguments: Sequence[Path]
) -> None:
    """Raise an error if a photo given by name, or every photo, is unreadable; else warn."""
    if not errors:
        return
    if set(errors) == set(paths) or not set(arguments).isdisjoint(errors):
        raise PhotoError("; ".join(errors.values()))
    warnings.warn(f"left out: {'; '.join(errors.values())}", stacklevel=2)


def result_stem(photo: Path) -> str:
    """Return how the names of a photo's results begin: with its own, at most `LONGEST_STEM` long.

    Classes and endings are added to it, and no name may have more than 255 bytes.
    """
    name = os.fsencode(photo.stem)
    if len(name) <= LONGEST_STEM:
        return photo.stem
    return name[:LONGEST_STEM].decode(errors="ignore") or "photo"


def _unique_stems(paths: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield each file's name without its ending, numbered if it is taken, and the file's path."""
    taken: set[str] = set()
    for path in paths:
        first = result_stem(path)
        numbered = (f"{first}-{number}" for number in count(2))
        stem = next(name for name in chain([first], numbered) if name not in taken)
        taken.add(stem)
        yield stem, path


def check_folder(path: Path) -> None:
    """Raise an `OutputError` if results cannot be written to a folder, before any work is done."""
    where = shown(path)
    try:
        # Unlike `Path.exists`, this also finds links that lead nowhere, or back to themselves.
        existing = next(p for p in (path, *path.absolute().parents) if os.path.lexists(p))
        is_folder = stat.S_ISDIR(existing.stat().st_mode)
    except (OSError, ValueError) as error:
        raise OutputError(f"cannot write to {where}: {reason(error)}") from error
    if not is_folder:
        it = "it" if existing == path else shown(existing)
        raise OutputError(f"cannot write to {where}: {it} is a file, not a folder")
    if any(len(os.fsencode(part)) > LONGEST_NAME for part in path.parts):
        raise OutputError(f"cannot write to {where}: {NAME_TOO_LONG}")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write to {where}: {shown(existing)} is not writable")


def _check_no_overwrite(photos: Sequence[Path], pictures: Sequence[Path]) -> None:
    """Raise an `OutputError` if a picture would overwrite a photo."""
    originals = {os.path.realpath(photo) for photo in photos}
    for picture in pictures:
        if os.path.realpath(picture) in originals:
            raise OutputError(
                f"{shown(picture)} would be written over the photo itself; use another --out"
            )


def _load(model: ModelSpec, settings: Mapping[str, Any]) -> tuple[Classifier, DMBP]:
    """Load the model while the GPU kernels that DMBP needs are compiled in the background."""
    compiled = {name: settings[name] for name in ("preset", "objective") if name in settings}
    DMBP.prepare(torch.zeros(1, device=model.torch_device), **compiled)
    classifier = model.load()
    return classifier, DMBP(classifier.module, **settings)


def _decode_inputs(
    stems: Mapping[str, Path],
    classifier: Classifier,
    question: InputQuestion,
    damaged: dict[Path, str],
) -> Iterator[Photo | ArrayInput]:
    """Yield one decoded input at a time; add those that cannot be decoded to `damaged`."""
    for stem, path in stems.items():
        try:
            yield from read_inputs(path, classifier, question, stem=stem)
        except PhotoError as error:
            damaged[path] = str(error)


def explain_all(
    photos: Iterable[Photo | ArrayInput],
    classifier: Classifier,
    explainer: DMBP,
    output: OutputOptions,
    *,
    total: int,
    console: Console | None,
) -> None:
    """Explain `total` photos one after the other, and write the files of each.

    No explanation is kept once its files are written, and the report holds one page's pictures.
    """
    steps = total * explainer.progress_steps
    report: ReportWriter | None = None
    if output.report:
        heading = report_heading(classifier, explainer.described())
        report = ReportWriter(output.folder, heading, style=output.style)
    with progress_bar(console, steps) as on_iteration, report or nullcontext():
        for photo in photos:
            explanation = explain_photo(photo, classifier, explainer, on_iteration)
            picture = _write_files(explanation, output, photo.stem)
            if report is not None:
                report.add(explanation.report_photo())
            if console is not None:
                console.print(f"{shown(photo.name)}: {explanation.summary()} → {shown(picture)}")
    if report is not None and not report.is_empty and console is not None:
        console.print(f"report → {output.folder / REPORT_NAME}")


def explain_photo(
    photo: Photo | ArrayInput,
    classifier: Classifier,
    explainer: DMBP,
    on_iteration: Callable[[], None] | None = None,
) -> Explanation[InputPrediction]:
    """Explain one photo for its targets, or for what suits the model's outputs if it has none."""
    started = time.perf_counter()
    prediction = photo.predict(classifier)
    predicted = time.perf_counter()
    decomposition = explainer.explain(
        prediction.inputs,
        target=[target.target for target in prediction.targets],
        outputs=prediction.outputs[None] if prediction.outputs.dim() == 1 else None,
        on_iteration=on_iteration,
    )
    seconds = {"reading": predicted - started, "explaining": time.perf_counter() - predicted}
    described = explainer.described()
    if isinstance(prediction, Prediction):
        return PhotoExplanation(prediction, decomposition, described, seconds)
    return ArrayExplanation(prediction, decomposition, described, seconds)


def _write_files(
    explanation: Explanation[InputPrediction], output: OutputOptions, stem: str
) -> Path:
    """Write a photo's files, all or none, and return the path of its picture."""
    folder, picture = output.folder, output.picture(stem)
    files = {
        picture: encode_figure(explanation.figure(output.style), output.suffix),
        folder / f"{stem}.json": explanation.record(),
    }
    is_photo = isinstance(explanation, PhotoExplanation)
    if output.raw and not is_photo:
        files |= explanation.raw_files(folder, stem)
    if output.raw and is_photo:
        files |= explanation.raw_files(folder, stem, whole_photo=output.whole_photo)
    if output.whole_photo and is_photo:
        files |= explanation.whole_photo_files(folder, stem, output.style)
    if output.gif and is_photo:
        files |= explanation.gif_files(folder, stem)
    write_all_or_none(files)
    return picture


@contextmanager
def progress_bar(console: Console | None, total: int) -> Generator[Callable[[], None] | None]:
    """Show a bar that disappears at the end; if `console` is not a terminal, show nothing."""
    if console is None or not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("explaining", total=total)
        yield lambda: bar.advance(task)
