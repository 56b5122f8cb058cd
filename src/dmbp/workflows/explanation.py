"""What is written about an input that was explained: pictures, records, maps.

An `Explanation` makes the contents of all files from a prediction and its decomposition.
`PhotoExplanation` is that of a photo; `arrays.py` has that of volumes, signals and tables.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy
import torch
from PIL import Image

from dmbp.baseline import baseline_for
from dmbp.decompose import Decomposition
from dmbp.metrics import area, insertion_curve, pixel_ranks, replace_pixels
from dmbp.metrics.insertion import STEPS
from dmbp.render import (
    ColourTest,
    PanelRow,
    PanelStyle,
    ReportPhoto,
    ReportTarget,
    SeriesRow,
    draw_panel,
    draw_whole_photo,
    encode_figure,
    insertion_gif,
    spread_over_photo,
)
from dmbp.render import panel_rows as drawn_rows
from dmbp.render.colour import Array
from dmbp.render.colour_test import share_decimals
from dmbp.workflows.prediction import InputPrediction, Prediction, encode_record
from dmbp.workflows.removal import PixelRemoval, remove_pixels

P = TypeVar("P", bound=InputPrediction, covariant=True)


@dataclass(frozen=True)
class Explanation(ABC, Generic[P]):
    """A prediction, and the decomposition that explains it: a row for each target.

    Its methods return the contents of the files that are written. In `seconds`, "reading" is the
    time for preparing the decoded input and running the model, "explaining" that for the
    decomposition.
    """

    prediction: P
    decomposition: Decomposition
    settings: Mapping[str, str | int | float]
    seconds: dict[str, float]

    @abstractmethod
    def input_record(self) -> dict[str, Any]:
        """Return what the input is, for the JSON file."""

    @abstractmethod
    def rows(self) -> Sequence[PanelRow | SeriesRow]:
        """Return what pictures show of each target."""

    @abstractmethod
    def picture(self, style: PanelStyle | None = None, *, suffix: str = ".png") -> bytes:
        """Return the picture as the content of an image file."""

    def summary(self) -> str:
        """Return what was predicted and what was explained, in words."""
        explained = ", ".join(target.label() for target in self.prediction.targets)
        return f"{self.prediction.verdict()}; explained {explained}"

    def record(self) -> bytes:
        """Return what the colours are worth, terms and settings as the content of a JSON file."""
        d = self.decomposition
        record = {
            **self.input_record(),
            "model": self.prediction.classifier.name,
            "weights": self.prediction.classifier.weights,
            "predicted": self.prediction.record(),
            "targets": [
                {
                    **target.record(),
                    **self.removals_found[row].record(),
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

    def raw_files(self, folder: Path, stem: str) -> dict[Path, bytes]:
        """Return the attributions (targets, channels, …) as `.npy`."""
        attribution = self.decomposition.attribution.cpu().float().numpy()
        return {folder / f"{stem}.npy": _encode_array(attribution)}

    def report_photo(self) -> ReportPhoto:
        """Return the input's section of the report."""
        d = self.decomposition
        terms = {
            "y⁺": (d.history.positive, d.positive_output),
            "y⁻": (d.history.negative, d.negative_output),
            "y~": (d.history.nuisance, d.nuisance_output),
        }
        targets = [
            ReportTarget(
                row=drawn,
                name=target.name,
                label=target.label(decimals=self.decimals),
                score_words=target.score_words(),
                curve=target.curve,
                history={
                    name: [*history[:, row].tolist(), float(final[row])]
                    for name, (history, final) in terms.items()
                },
                insertion=self.insertion_curves[row],
                insertion_score=float(area(torch.tensor(self.insertion_curves[row])[None])),
                exactness=d.exactness,
                seconds=self.seconds["explaining"],
            )
            for row, (target, drawn) in enumerate(
                zip(self.prediction.targets, self.rows(), strict=True)
            )
        ]
        verdict = self.prediction.verdict(decimals=self.decimals)
        independent = self.prediction.has_independent_classes
        return ReportPhoto(self.prediction.name, verdict, targets, independent=independent)

    @cached_property
    def insertion_curves(self) -> list[list[float]]:
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
    def removals_found(self) -> list[PixelRemoval]:
        """What the model says without the strongest pixels of each colour, for each target."""
        return remove_pixels(self.prediction, self.decomposition)

    @cached_property
    def tests(self) -> list[ColourTest]:
        """The same as pictures show it, with the same decimals everywhere."""
        removals = zip(self.removals_found, self.prediction.targets, strict=True)
        shown = [found.shown_test(target) for found, target in removals]
        return share_decimals(shown)

    @property
    def decimals(self) -> int:
        """How many decimals percentages have in this explanation's picture and report."""
        return self.tests[0].decimals or 0


@dataclass(frozen=True)
class PhotoExplanation(Explanation[Prediction]):
    """The explanation of a photo."""

    def input_record(self) -> dict[str, Any]:
        """Return the photo's name, its size and what the model saw of it."""
        return {
            "photo": self.prediction.name,
            "preprocessing": self.prediction.classifier.preprocessing.as_dict(),
            "photo_size": list(self.prediction.original.size),
            "seen": [round(side, 3) for side in self.prediction.frame.corners],
        }

    def rows(self) -> list[PanelRow]:
        """Return a row of the panel for each target."""
        return self.panel_rows()

    def picture(self, style: PanelStyle | None = None, *, suffix: str = ".png") -> bytes:
        """Return the panel as the content of an image file."""
        independent = self.prediction.has_independent_classes
        figure = draw_panel(self.panel_rows(), style, independent=independent)
        return encode_figure(figure, suffix)

    def raw_files(self, folder: Path, stem: str, *, whole_photo: bool = False) -> dict[Path, bytes]:
        """Return the attributions (targets, channels, height, width) as `.npy` and 16-bit PNG.

        There is a PNG for each target. Its mid-grey, 32768, stands for zero, and the map's largest
        magnitude is 32767 away from it. With `whole_photo`, the sums over channels are also given
        at the photo's own size, NaN in the `.npy` and zero in the PNG where the model did not look.
        """
        attribution = self.decomposition.attribution.cpu().float().numpy()
        maps = list(attribution.sum(1))
        files = super().raw_files(folder, stem)
        files |= self.map_files(folder, stem, maps, "map")
        if whole_photo:
            frame, size = self.prediction.frame, self.prediction.original.size
            spread = [spread_over_photo(values, frame.corners, size) for values in maps]
            files[folder / f"{stem}-whole.npy"] = _encode_array(numpy.stack(spread))
            whole = [numpy.nan_to_num(values) for values in spread]
            files |= self.map_files(folder, stem, whole, "whole-map")
        return files

    def map_files(
        self, folder: Path, stem: str, maps: Sequence[Array], ending: str
    ) -> dict[Path, bytes]:
        """Return each target's map as a 16-bit PNG."""
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
        for target, row in zip(self.prediction.targets, self.panel_rows(), strict=True):
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
            gif = insertion_gif(frames, self.insertion_curves[row], target.curve)
            files[folder / f"{stem}-{target.slug()}.gif"] = gif
        return files

    def panel_rows(self) -> list[PanelRow]:
        """Return a row of the panel for each target."""
        prediction, decimals = self.prediction, self.decimals
        verdict = f"the photo\n{prediction.verdict(decimals=decimals)}"
        rows = drawn_rows(
            self.decomposition,
            photos=[prediction.photo] * len(prediction.targets),
            photo_captions=[verdict] * len(prediction.targets),
            target_captions=[
                k.caption("for and against:", decimals=decimals) for k in prediction.targets
            ],
            tests=self.tests,
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
