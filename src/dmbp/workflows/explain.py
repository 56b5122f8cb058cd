"""`dmbp explain`: explain photos, and write a picture and a JSON file for each.

`explain_photos` checks everything that can be checked cheaply (the photos' headers, the folder for
the results, the device), loads the model, and hands the files to a `FolderJob`, which decodes and
explains them and draws their pictures. `write_all` writes what it finishes, in order.
"""

import os
import stat
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from dmbp.attribution import DMBP
from dmbp.data import check_photo, is_array_file, photo_paths
from dmbp.data.arrays import MAX_BYTES
from dmbp.errors import InputError, OutputError, PhotoError
from dmbp.files import LONGEST_NAME, NAME_TOO_LONG, check_file, reason, shown, write_all_or_none
from dmbp.models import Classifier
from dmbp.render import REPORT_NAME, ReportWriter
from dmbp.workflows.arrays import ArrayInput
from dmbp.workflows.batches import explain_photo
from dmbp.workflows.explained_target import Asked
from dmbp.workflows.explanation import report_heading
from dmbp.workflows.folder import FinishedInput, FolderJob, OutputOptions, finish
from dmbp.workflows.prediction import ModelSpec
from dmbp.workflows.sources import InputQuestion, Photo

LONGEST_STEM = 110
"""The most bytes of the photo's name in the names of its results."""


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
    job = FolderJob(classifier, explainer, question, output)
    with progress_bar(console, len(stems) * explainer.progress_steps) as on_iteration:
        finished = job.finish_files(stems, damaged, on_iteration)
        write_all(finished, classifier, explainer, output, console=console)
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
    with progress_bar(console, steps) as on_iteration:
        finished = (
            finish(explain_photo(photo, classifier, explainer, on_iteration), output, photo.stem)
            for photo in photos
        )
        write_all(finished, classifier, explainer, output, console=console)


def write_all(
    finished: Iterable[FinishedInput],
    classifier: Classifier,
    explainer: DMBP,
    output: OutputOptions,
    *,
    console: Console | None,
) -> None:
    """Write the files of each photo as it is finished, say so, and write the report."""
    report: ReportWriter | None = None
    if output.report:
        heading = report_heading(classifier, explainer.described())
        report = ReportWriter(output.folder, heading, style=output.style)
    with report or nullcontext():
        for one in finished:
            write_all_or_none(one.files)
            if report is not None and one.section is not None:
                report.add(one.section)
            if console is not None:
                console.print(f"{shown(one.name)}: {one.summary} → {shown(one.picture)}")
    if report is not None and not report.is_empty and console is not None:
        console.print(f"report → {output.folder / REPORT_NAME}")


@contextmanager
def progress_bar(console: Console | None, total: int) -> Generator[Callable[[], None] | None]:
    """Show a bar that disappears at the end; if `console` is not a terminal, show nothing."""
    if console is None or not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("explaining", total=total)
        yield lambda: bar.advance(task)
