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
from dataclasses import dataclass, replace
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
from dmbp.data import check_photo, photo_paths, read_photo
from dmbp.decompose import Decomposition
from dmbp.errors import OutputError, PhotoError
from dmbp.files import LONGEST_NAME, NAME_TOO_LONG, reason, shown
from dmbp.metrics import area, insertion_curve, pixel_ranks, replace_pixels
from dmbp.metrics.insertion import STEPS
from dmbp.models import Classifier
from dmbp.render import (
    REPORT_NAME,
    ColourTest,
    PanelRow,
    PanelStyle,
    ReportHeading,
    ReportPhoto,
    ReportTarget,
    ReportWriter,
    draw_panel,
    draw_whole_photo,
    encode_figure,
    insertion_gif,
    panel_rows,
    spread_over_photo,
    write_all_or_none,
)
from dmbp.render.colour import Array
from dmbp.render.colour_test import share_decimals
from dmbp.workflows.prediction import ModelSpec, Prediction, encode_record, predict
from dmbp.workflows.removal import PixelRemoval, remove_pixels

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

    def picture(self, stem: str) -> Path:
        """Return the path of a photo's picture."""
        return self.folder / f"{stem}{self.suffix}"


@dataclass(frozen=True)
class Photo:
    """A decoded photo and what to explain: `targets` and `rather_than` are as for `predict`.

    `name` is used in messages, `stem` in the names of the files that are written.
    """

    name: str
    stem: str
    image: Image.Image
    targets: Sequence[str]
    rather_than: Sequence[str] = ()


@dataclass(frozen=True)
class Explanation:
    """A prediction, and the decomposition that explains it: a row for each target.

    Its methods return the contents of the files that are written. In `seconds`, "reading" is the
    time for preprocessing the decoded photo and running the model, "explaining" that for the
    decomposition.
    """

    prediction: Prediction
    decomposition: Decomposition
    settings: Mapping[str, str | int | float]
    seconds: dict[str, float]

    def summary(self) -> str:
        """Return what was predicted and what was explained, in words."""
        explained = ", ".join(target.label() for target in self.prediction.targets)
        return f"{self.prediction.verdict()}; explained {explained}"

    def picture(self, style: PanelStyle | None = None, *, suffix: str = ".png") -> bytes:
        """Return the panel as the content of an image file."""
        independent = self.prediction.has_independent_classes
        figure = draw_panel(self._panel_rows(), style, independent=independent)
        return encode_figure(figure, suffix)

    def record(self) -> bytes:
        """Return what the colours are worth, terms and settings as the content of a JSON file."""
        d = self.decomposition
        record = {
            "photo": self.prediction.name,
            "model": self.prediction.classifier.name,
            "weights": self.prediction.classifier.weights,
            "preprocessing": self.prediction.classifier.preprocessing.as_dict(),
            "photo_size": list(self.prediction.original.size),
            "seen": [round(side, 3) for side in self.prediction.frame.corners],
            "predicted": self.prediction.record(),
            "targets": [
                {
                    **target.record(),
                    **self._removals[row].record(),
                    "terms": {
                        "output": d.output[row].item(),
                        "positive": d.positive_output[row].item(),
                        "negative": d.negative_output[row].item(),
                        "nuisance": d.nuisance_output[row].item(),
                    },
                }
                for row, target in enumerate(self.prediction.targets)
            ],
            "exactness": d.exactness,
            "approximation_error": d.approximation_error,
            "settings": dict(self.settings),
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
        }
        return encode_record(record)

    def raw_files(self, folder: Path, stem: str, *, whole_photo: bool = False) -> dict[Path, bytes]:
        """Return the attributions (targets, channels, height, width) as `.npy` and 16-bit PNG.

        There is a PNG for each target. Its mid-grey, 32768, stands for zero, and the map's largest
        magnitude is 32767 away from it. With `whole_photo`, the sums over channels are also given
        at the photo's own size, NaN in the `.npy` and zero in the PNG where the model did not look.
        """
        attribution = self.decomposition.attribution.cpu().float().numpy()
        maps = list(attribution.sum(1))
        files = {folder / f"{stem}.npy": _encode_array(attribution)}
        files |= self._map_files(folder, stem, maps, "map")
        if whole_photo:
            frame, size = self.prediction.frame, self.prediction.original.size
            spread = [spread_over_photo(values, frame.corners, size) for values in maps]
            files[folder / f"{stem}-whole.npy"] = _encode_array(numpy.stack(spread))
            whole = [numpy.nan_to_num(values) for values in spread]
            files |= self._map_files(folder, stem, whole, "whole-map")
        return files

    def _map_files(
        self, folder: Path, stem: str, maps: Sequence[Array], ending: str
    ) -> dict[Path, bytes]:
        return {
            folder / f"{stem}-{target.slug()}-{ending}.png": _encode_map(values)
            for target, values in zip(self.prediction.targets, maps, strict=True)
        }

    def whole_photo_files(
        self, folder: Path, stem: str, style: PanelStyle | None = None
    ) -> dict[Path, bytes]:
        """Return a PNG for each target: the evidence over the whole photo, at its own size."""
        files: dict[Path, bytes] = {}
        frame = self.prediction.frame
        for target, row in zip(self.prediction.targets, self._panel_rows(), strict=True):
            lines = [
                numpy.array([frame.to_photo((x + 0.5, y + 0.5)) for x, y in line])
                for line in row.region_lines
            ]
            picture = draw_whole_photo(
                self.prediction.original,
                row.attribution,
                frame.corners,
                outlines=lines,
                style=style,
            )
            buffer = BytesIO()
            picture.save(buffer, "PNG")
            files[folder / f"{stem}-{target.slug()}-whole.png"] = buffer.getvalue()
        return files

    def gif_files(self, folder: Path, stem: str) -> dict[Path, bytes]:
        """Return a GIF for each target: its strongest pixels are put into a blurred photo."""
        d = self.decomposition
        ranks, blurred = pixel_ranks(d.attribution, d.inputs), baseline_for(d.inputs, "blur")
        fractions = torch.linspace(0, 1, STEPS + 1)
        files: dict[Path, bytes] = {}
        for row, target in enumerate(self.prediction.targets):
            only = slice(row, row + 1)
            frames = [
                self.prediction.denormalise(
                    replace_pixels(d.inputs[only], blurred[only], ranks[only], fraction)[0]
                )
                for fraction in fractions[:, None]
            ]
            gif = insertion_gif(frames, self._insertion_curves[row], target.curve)
            files[folder / f"{stem}-{target.slug()}.gif"] = gif
        return files

    def report_photo(self) -> ReportPhoto:
        """Return the photo's section of the report."""
        d = self.decomposition
        terms = {
            "y⁺": (d.history.positive, d.positive_output),
            "y⁻": (d.history.negative, d.negative_output),
            "y~": (d.history.nuisance, d.nuisance_output),
        }
        targets = [
            ReportTarget(
                row=panel_row,
                name=target.name,
                label=target.label(decimals=self._decimals),
                score_words=target.score_words(),
                curve=target.curve,
                history={
                    name: [*history[:, row].tolist(), float(final[row])]
                    for name, (history, final) in terms.items()
                },
                insertion=self._insertion_curves[row],
                insertion_score=float(area(torch.tensor(self._insertion_curves[row])[None])),
                exactness=d.exactness,
                seconds=self.seconds["explaining"],
            )
            for row, (target, panel_row) in enumerate(
                zip(self.prediction.targets, self._panel_rows(), strict=True)
            )
        ]
        verdict = self.prediction.verdict(decimals=self._decimals)
        independent = self.prediction.has_independent_classes
        return ReportPhoto(self.prediction.name, verdict, targets, independent=independent)

    @cached_property
    def _insertion_curves(self) -> list[list[float]]:
        """Each target's probability, or else its score, as its strongest pixels are inserted."""
        d = self.decomposition
        curve = insertion_curve(
            self.prediction.classifier.module,
            d.inputs,
            [target.likely for target in self.prediction.targets],
            d.attribution,
            activation=self.prediction.classifier.activation,
        )
        return curve.tolist()

    @cached_property
    def _removals(self) -> list[PixelRemoval]:
        """What the model says without the strongest pixels of each colour, for each target."""
        return remove_pixels(self.prediction, self.decomposition)

    @cached_property
    def _tests(self) -> list[ColourTest]:
        """The same as pictures show it, with the same decimals everywhere."""
        removals = zip(self._removals, self.prediction.targets, strict=True)
        shown = [found.shown_test(target) for found, target in removals]
        return share_decimals(shown)

    @property
    def _decimals(self) -> int:
        """How many decimals percentages have in this explanation's picture and report."""
        return self._tests[0].decimals or 0

    def _panel_rows(self) -> list[PanelRow]:
        prediction, decimals = self.prediction, self._decimals
        verdict = f"the photo\n{prediction.verdict(decimals=decimals)}"
        rows = panel_rows(
            self.decomposition,
            photos=[prediction.photo] * len(prediction.targets),
            photo_captions=[verdict] * len(prediction.targets),
            target_captions=[
                k.caption("for and against:", decimals=decimals) for k in prediction.targets
            ],
            tests=self._tests,
            regions=[target.region for target in prediction.targets],
        )
        if prediction.classifier.preprocessing.channels == "rgb":
            return rows
        return [  # maps are drawn as RGB
            replace(
                row,
                positive_map=row.positive_map[..., ::-1],
                negative_map=row.negative_map[..., ::-1],
            )
            for row in rows
        ]


def _encode_array(values: Array) -> bytes:
    """Return an array as the content of a `.npy` file."""
    buffer = BytesIO()
    numpy.save(buffer, values)
    return buffer.getvalue()


def _encode_map(values: Array) -> bytes:
    """Return a signed map as the content of a 16-bit PNG."""
    largest = max(float(numpy.abs(values).max()), 1e-30)
    levels = numpy.round(32768 + 32767 * values / largest).astype(numpy.uint16)
    buffer = BytesIO()
    Image.fromarray(levels).save(buffer, "PNG")
    return buffer.getvalue()


def explain_photos(
    files: Sequence[Path],
    model: ModelSpec,
    output: OutputOptions,
    *,
    targets: Sequence[str] = (),
    rather_than: Sequence[str] = (),
    settings: Mapping[str, Any],
    console: Console | None,
) -> None:
    """Explain photos, given as files or folders, with DMBP's `settings`.

    `targets` and `rather_than` are as for `predict`.

    Raises:
        PhotoError: If a photo given by name, or every photo, cannot be read. If its header shows
            that, nothing is written. Damaged pixels are noticed only when the photo is decoded;
            the other photos are then still explained.
        OutputError: If the files cannot be written, or a picture would overwrite a photo.
    """
    paths = _check_photos(photo_paths(files), arguments=files)
    check_folder(output.folder)
    stems = dict(_unique_stems(paths))
    _check_no_overwrite(paths, [output.picture(stem) for stem in stems])
    classifier, explainer = _load(model, settings)
    damaged: dict[Path, str] = {}
    photos = _decode_photos(stems, classifier, targets, rather_than, damaged)
    explain_all(photos, classifier, explainer, output, total=len(stems), console=console)
    _report_unreadable(damaged, paths, arguments=files)


def _check_photos(paths: Sequence[Path], *, arguments: Sequence[Path]) -> list[Path]:
    """Check the photos' headers, and return the paths of those that can be read."""
    errors: dict[Path, str] = {}
    for path in paths:
        try:
            check_photo(path)
        except PhotoError as error:
            errors[path] = str(error)
    _report_unreadable(errors, paths, arguments=arguments)
    return [path for path in paths if path not in errors]


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


def _decode_photos(
    stems: Mapping[str, Path],
    classifier: Classifier,
    targets: Sequence[str],
    rather_than: Sequence[str],
    damaged: dict[Path, str],
) -> Iterator[Photo]:
    """Yield one decoded photo at a time; add those that cannot be decoded to `damaged`."""
    for stem, path in stems.items():
        try:
            image = read_photo(path)
            classifier.preprocessing.scaled_size(image.size)
        except PhotoError as error:
            damaged[path] = str(error)
        else:
            yield Photo(str(path), stem, image, targets, rather_than)


def explain_all(
    photos: Iterable[Photo],
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
    report = _report(classifier, explainer, output) if output.report else None
    with _progress(console, steps) as on_iteration, report or nullcontext():
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
    photo: Photo,
    classifier: Classifier,
    explainer: DMBP,
    on_iteration: Callable[[], None] | None = None,
) -> Explanation:
    """Explain one photo for its targets, or for what suits the model's outputs if it has none."""
    started = time.perf_counter()
    prediction = predict(
        photo.image, photo.name, classifier, photo.targets, rather_than=photo.rather_than
    )
    predicted = time.perf_counter()
    decomposition = explainer.explain(
        prediction.inputs,
        target=[target.target for target in prediction.targets],
        outputs=prediction.outputs[None] if prediction.outputs.dim() == 1 else None,
        on_iteration=on_iteration,
    )
    seconds = {"reading": predicted - started, "explaining": time.perf_counter() - predicted}
    return Explanation(prediction, decomposition, explainer.described(), seconds)


def _write_files(explanation: Explanation, output: OutputOptions, stem: str) -> Path:
    """Write a photo's files, all or none, and return the path of its picture."""
    folder, picture = output.folder, output.picture(stem)
    files = {
        picture: explanation.picture(output.style, suffix=output.suffix),
        folder / f"{stem}.json": explanation.record(),
    }
    if output.raw:
        files |= explanation.raw_files(folder, stem, whole_photo=output.whole_photo)
    if output.whole_photo:
        files |= explanation.whole_photo_files(folder, stem, output.style)
    if output.gif:
        files |= explanation.gif_files(folder, stem)
    write_all_or_none(files)
    return picture


def _report(classifier: Classifier, explainer: DMBP, output: OutputOptions) -> ReportWriter:
    preprocessing = classifier.preprocessing.as_dict()
    settings = {} if classifier.weights is None else {"weights": classifier.weights}
    settings["photos"] = ", ".join(f"{name} {value}" for name, value in preprocessing.items())
    heading = ReportHeading(
        classifier.name,
        settings=settings | explainer.described(),
        versions={"dmbp": __version__, "torch": torch.__version__},
    )
    return ReportWriter(output.folder, heading, style=output.style)


@contextmanager
def _progress(console: Console | None, total: int) -> Generator[Callable[[], None] | None]:
    """Show a bar that disappears at the end; if `console` is not a terminal, show nothing."""
    if console is None or not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("explaining", total=total)
        yield lambda: bar.advance(task)
