"""Turns the files of a folder into pictures, records and sections of a report, in their order.

A `FolderJob` decodes, explains and draws. On a CPU it does so in a process for each core. These are
forks of this one (`forked_workers`), made after it has explained the first file, so they share the
model and its capture. Elsewhere, photos are explained in batches in this process.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dmbp.attribution import DMBP
from dmbp.display import encode_figure
from dmbp.errors import PhotoError
from dmbp.models import Classifier
from dmbp.process import machine_memory
from dmbp.render import DrawnPhoto, PanelStyle
from dmbp.workflows.arrays import ArrayInput
from dmbp.workflows.batches import PHOTOS_TOGETHER, explain_together
from dmbp.workflows.explanation import Explanation, PhotoExplanation
from dmbp.workflows.forked_workers import ForkedWorkers, can_fork, usable_cores
from dmbp.workflows.prediction import InputPrediction
from dmbp.workflows.sources import InputQuestion, Photo, read_inputs


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


@dataclass(frozen=True)
class FinishedInput:
    """What is to be written about an input: files, the line on the terminal, the report's section.

    It holds neither the model nor tensors, so it can be sent from one process to another.
    """

    name: str
    summary: str
    picture: Path
    files: Mapping[Path, bytes]
    section: DrawnPhoto | None


def finish(
    explanation: Explanation[InputPrediction], output: OutputOptions, stem: str
) -> FinishedInput:
    """Draw the pictures and make the contents of all files of an explanation."""
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
    section = DrawnPhoto.of(explanation.report_photo(), output.style) if output.report else None
    name = explanation.prediction.name
    return FinishedInput(name, explanation.summary(), picture, files, section)


@dataclass(frozen=True)
class FinishedGroup:
    """What a worker sends back: finished inputs, files that cannot be read, and warnings."""

    finished: Sequence[FinishedInput]
    damaged: Mapping[Path, str]
    warned: Sequence[tuple[Any, ...]]


File = tuple[str, Path]
"""How the names of a file's results begin, and its path."""

LEAST_FILES = 4
"""So many files are worth processes of their own."""

MEMORY_SHARE = 0.5
"""The share of the machine's memory that all processes may take together, if each takes as much as
this one has taken for the first file."""


@dataclass(frozen=True)
class FolderJob:
    """How files are explained, and what is made of them."""

    classifier: Classifier
    explainer: DMBP
    question: InputQuestion
    output: OutputOptions

    def finish_files(
        self,
        stems: Mapping[str, Path],
        damaged: dict[Path, str],
        on_iteration: Callable[[], None] | None = None,
    ) -> Iterator[FinishedInput]:
        """Yield every input in the files, finished, in order; add unreadable files to `damaged`.

        `on_iteration` is called `DMBP.progress_steps` times for each file.
        """
        files = list(stems.items())
        yield from self._finish_here(files[:1], damaged, on_iteration)
        files = files[1:]
        processes = self._processes(len(files))
        if processes < 2:
            yield from self._finish_here(files, damaged, on_iteration)
            return
        groups = list(_groups(files, processes))
        registry: dict[Any, Any] = {}
        with ForkedWorkers(self._finish_group, processes) as workers:
            for group, found in workers.map(groups):
                if found is None:
                    yield from self._finish_here(group, damaged, on_iteration)
                    continue
                for warned in found.warned:
                    warnings.warn_explicit(*warned, registry=registry)
                damaged |= found.damaged
                yield from found.finished
                if on_iteration is not None:
                    for _ in range(len(group) * self.explainer.progress_steps):
                        on_iteration()

    def _finish_here(
        self,
        files: Sequence[File],
        damaged: dict[Path, str],
        on_iteration: Callable[[], None] | None = None,
    ) -> Iterator[FinishedInput]:
        stems: deque[str] = deque()

        def decoded() -> Iterator[Photo | ArrayInput]:
            for photo in self._decode(files, damaged):
                stems.append(photo.stem)
                yield photo

        explained = explain_together(decoded(), self.classifier, self.explainer, on_iteration)
        for explanation in explained:
            yield finish(explanation, self.output, stems.popleft())

    def _finish_group(self, files: Sequence[File]) -> FinishedGroup:
        damaged: dict[Path, str] = {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            finished = list(self._finish_here(files, damaged))
        warned = [(k.message, k.category, k.filename, k.lineno) for k in caught]
        return FinishedGroup(finished, damaged, warned)

    def _decode(
        self, files: Iterable[File], damaged: dict[Path, str]
    ) -> Iterator[Photo | ArrayInput]:
        """Yield one decoded input at a time; add those that cannot be decoded to `damaged`."""
        for stem, path in files:
            try:
                yield from read_inputs(path, self.classifier, self.question, stem=stem)
            except PhotoError as error:
                damaged[path] = str(error)

    def _processes(self, files: int) -> int:
        """Return how many processes explain so many files."""
        device = self.classifier.move_inputs(torch.empty(0)).device
        if files < LEAST_FILES or device.type != "cpu" or not can_fork():
            return 1
        import resource  # there is none on Windows, where there are no forks

        taken = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        fitting = int(MEMORY_SHARE * machine_memory() / taken)
        return min(usable_cores(), files // 2, fitting)


def _groups(files: Sequence[File], processes: int) -> Iterator[Sequence[File]]:
    """Yield groups of neighbouring files, smaller ones if there are few for each process."""
    size = max(1, min(PHOTOS_TOGETHER["cpu"], len(files) // (2 * processes)))
    for start in range(0, len(files), size):
        yield files[start : start + size]
