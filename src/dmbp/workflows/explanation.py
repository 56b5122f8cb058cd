"""What is written about an input that was explained: pictures, records, maps.

An `Explanation` makes the contents of all files from a prediction and its decomposition.
`PhotoExplanation` is that of a photo; `arrays.py` has that of volumes, signals and tables.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from dmbp import __version__
from dmbp.attribution import DMBP
from dmbp.baseline import baseline_for
from dmbp.decompose import Decomposition
from dmbp.decompose.decomposition import Labels
from dmbp.display import Shown
from dmbp.engine import ForwardPass
from dmbp.files import write_all_or_none
from dmbp.metrics import area, insertion_curve, pixel_ranks, replace_pixels
from dmbp.metrics.insertion import STEPS
from dmbp.models import Classifier
from dmbp.render import (
    ColourTest,
    PanelRow,
    PanelStyle,
    ReportHeading,
    ReportPhoto,
    ReportTarget,
    SeriesRow,
    draw_panel,
    draw_whole_photo,
    framed,
    insertion_gif,
    report_page,
    spread_over_photo,
)
from dmbp.render import panel_rows as drawn_rows
from dmbp.render.colour import Array
from dmbp.render.colour_test import share_decimals
from dmbp.workflows.input_shape import takes_photos
from dmbp.workflows.prediction import InputPrediction, Prediction, encode_record
from dmbp.workflows.removal import PixelRemoval, remove_pixels

P = TypeVar("P", bound=InputPrediction, covariant=True)


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(Shown, Generic[P]):
    """What a model said about an input, and why: a row for each target.

    It shows itself in a notebook, by `show()` and by `plot("cat.png")`. Two explanations are equal
    if everything is that they tell, but for the seconds they took.

    Attributes:
        prediction: What the model said, and what is explained.
        decomposition: The attributions and terms, a row for each target.
        settings: How it was explained.
        seconds: "reading" is the time for preparing the decoded input and running the model,
            "explaining" that for the decomposition.
        explainer: What explained it, which may know a faster way to run the model.
    """

    prediction: P
    decomposition: Decomposition
    settings: Mapping[str, str | int | float]
    seconds: dict[str, float]
    explainer: DMBP | None = None

    def __repr__(self) -> str:
        """Say what was predicted and explained."""
        return f"<{type(self).__name__} of {self.prediction.name}: {self.summary()}>"

    def __eq__(self, other: object) -> bool:
        """Return whether everything but the seconds is the same."""
        if not isinstance(other, Explanation):
            return NotImplemented
        known: Explanation[InputPrediction] = other
        one, two = ({**k.to_dict(), "seconds": None} for k in (self, known))
        return one == two and self.decomposition == known.decomposition

    @property
    def attribution(self) -> Tensor:
        """The signed attributions (targets, channels, …), in units of the score.

        Positive values speak for the target, negative ones against it.
        """
        return self.decomposition.attribution

    @property
    def worth_for(self) -> Tensor:
        """What each target's score loses if all red pixels are removed, (targets,)."""
        return self.decomposition.worth_for

    @property
    def worth_against(self) -> Tensor:
        """What each target's score gains if all blue pixels are removed, (targets,)."""
        return self.decomposition.worth_against

    @property
    def targets(self) -> list[str]:
        """What was explained, in words."""
        return [target.name for target in self.prediction.targets]

    @abstractmethod
    def labels(self) -> Labels:
        """Return what pictures show beside the numbers."""

    @abstractmethod
    def figure(self, style: PanelStyle | None = None) -> Figure:
        """Return the picture: the input, the evidence over it, and the input without each colour.

        Args:
            style: How it looks, such as `dmbp.render.PanelStyle(smoothing=0)`.
        """

    def draw_on(self, axes: Axes, *, row: int | None = None, **options: Any) -> None:
        """Draw the map of one target over its image into axes of matplotlib.

        Args:
            axes: The axes.
            row: The number of the target; it may be left out if there is only one.
            **options: Those of `dmbp.render.draw_row`: `caption` and `style`.

        Raises:
            InputError: If the target has to be said, or the input is no image.
        """
        self._labelled().draw_on(axes, row=row, **options)

    def save(self, path: str | Path) -> None:
        """Write the decomposition with the photo and the names to a safetensors file.

        `dmbp.load` reads it, and what it returns draws the same picture; it has no model.

        Raises:
            OutputError: If the file cannot be written.
        """
        self._labelled().save(path)

    def _labelled(self) -> Decomposition:
        return replace(self.decomposition, labels=self.labels())

    def report(self, path: str | Path, *, style: PanelStyle | None = None) -> Path:
        """Write one HTML page with the picture, the numbers and how they came about.

        Args:
            path: The page to write, which has everything inside and loads nothing.
            style: How the pictures look.

        Returns:
            The path.

        Raises:
            OutputError: If the file cannot be written.
        """
        heading = report_heading(self.prediction.classifier, self.settings)
        write_all_or_none({Path(path): report_page(self.report_photo(), heading, style=style)})
        return Path(path)

    def _repr_html_(self) -> str:
        heading = report_heading(self.prediction.classifier, self.settings)
        page = report_page(self.report_photo(), heading, is_part=True).decode()
        return framed(page)

    @abstractmethod
    def input_record(self) -> dict[str, Any]:
        """Return what the input is, for the JSON file."""

    @abstractmethod
    def rows(self) -> Sequence[PanelRow | SeriesRow]:
        """Return what pictures show of each target."""

    def summary(self) -> str:
        """Return what was predicted and what was explained, in words."""
        explained = ", ".join(target.label() for target in self.prediction.targets)
        return f"{self.prediction.verdict()}; explained {explained}"

    def record(self) -> bytes:
        """Return `to_dict` as the content of a JSON file."""
        return encode_record(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return what the colours are worth, terms and settings as plain values.

        It is what `dmbp explain` writes as JSON.
        """
        d = self.decomposition
        return {
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
        outputs = self.prediction.outputs
        run: ForwardPass | None = None
        if self.explainer is not None and outputs.dim() == 1:
            run = self.explainer.forward_pass(self.prediction.inputs, outputs[None])
        curve = insertion_curve(
            self.prediction.classifier.module,
            d.inputs,
            [target.likely for target in self.prediction.targets],
            d.attribution,
            activation=self.prediction.classifier.activation,
            run=run,
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


@dataclass(frozen=True, eq=False, repr=False)
class PhotoExplanation(Explanation[Prediction]):
    """The explanation of a photo."""

    def labels(self) -> Labels:
        """Return the photo and the names that pictures show."""
        prediction = self.prediction
        photo = torch.from_numpy(numpy.round(prediction.photo * 255).astype(numpy.uint8))
        return Labels(
            photo,
            f"the photo\n{prediction.verdict(decimals=self.decimals)}",
            tuple(self.targets),
            tuple(k.label(decimals=self.decimals) for k in prediction.targets),
            prediction.classifier.activation if prediction.gives_classes else None,
        )

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

    def figure(self, style: PanelStyle | None = None) -> Figure:
        """Return the panel.

        Args:
            style: How it looks, such as `dmbp.render.PanelStyle(smoothing=0)`.
        """
        independent = self.prediction.has_independent_classes
        return draw_panel(self.panel_rows(), style, independent=independent)

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


def report_heading(
    classifier: Classifier, settings: Mapping[str, str | int | float]
) -> ReportHeading:
    """Return what a report says about the model and how it was explained."""
    weights = {} if classifier.weights is None else {"weights": classifier.weights}
    photos: dict[str, str] = {}
    if takes_photos(classifier):
        preprocessing = classifier.preprocessing.as_dict()
        photos["photos"] = ", ".join(f"{name} {value}" for name, value in preprocessing.items())
    return ReportHeading(
        classifier.name,
        settings={**weights, **photos, **settings},
        versions={"dmbp": __version__, "torch": torch.__version__},
    )


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
