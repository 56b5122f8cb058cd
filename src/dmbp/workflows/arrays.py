"""Explains inputs that are no photos: volumes, images of many bands, signals and tables.

Their numbers are given to the model as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from dmbp.decompose.decomposition import Labels
from dmbp.errors import InputError
from dmbp.files import shown
from dmbp.models import Classifier
from dmbp.models.classifier import run_model
from dmbp.models.input_settings import OPTIONS
from dmbp.render import (
    PanelRow,
    PanelStyle,
    SeriesRow,
    draw_charts,
    draw_panel,
    panel_rows,
    series_rows,
)
from dmbp.render.colour_test import IMAGE_WORDS
from dmbp.render.pictures import shown_bands
from dmbp.targets import TargetContext
from dmbp.workflows.explained_target import Asked, explained_targets
from dmbp.workflows.explanation import Explanation
from dmbp.workflows.prediction import InputPrediction


@dataclass(frozen=True)
class ArrayPrediction(InputPrediction):
    """What a model says about an input that is no photo.

    `names` are those of a table's columns, and `bands` the channels that pictures show.
    """

    names: Sequence[str] | None = field(default=None, kw_only=True)
    bands: Sequence[int] | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class ArrayInput:
    """An input that is no photo, (1, …), and what to explain, as in `Photo`."""

    name: str
    stem: str
    inputs: Tensor
    targets: Sequence[Asked]
    rather_than: Sequence[str] = ()
    names: Sequence[str] | None = None
    bands: Sequence[int] | None = None

    def predict(self, classifier: Classifier) -> ArrayPrediction:
        """Run the model on the input, and look up what to explain."""
        _check_settings(classifier, self.name)
        if self.bands is not None and self.inputs.dim() in WORDS:
            shown_bands(self.inputs, self.bands)  # before anything is computed
        inputs = classifier.move_inputs(self.inputs)
        batch_outputs, classifier = run_model(classifier, inputs)
        outputs = batch_outputs[0]
        if outputs.dim() == 1:
            classifier.check_classes(outputs)
        size = tuple(inputs.shape[2:]) or tuple(inputs.shape[1:])
        context = TargetContext(outputs, size, classifier.classes, classifier.activation)
        prediction = ArrayPrediction(
            self.name, classifier, inputs, context, names=self.names, bands=self.bands
        )
        asked = explained_targets(classifier, context, self.targets, self.rather_than)
        return replace(prediction, targets=asked)


def parse_bands(text: str | None) -> tuple[int, ...] | None:
    """Return the numbers of bands that a user wrote, such as 3,2,1."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 6 for part in parts):
        raise InputError(f"--bands takes numbers of bands, such as 3,2,1, not {shown(text)!r}")
    return tuple(map(int, parts))


def _check_settings(classifier: Classifier, name: str) -> None:
    """Raise an `InputError` if settings for photos were given."""
    given = [key for key, origin in classifier.origins.items() if origin == OPTIONS]
    settings = [f"--{key}" for key in given if key != "classes"]
    if settings:
        raise InputError(
            f"{', '.join(settings)} {'is' if len(settings) == 1 else 'are'} for photos: the "
            f"numbers of {shown(name)} are given to the model as they are"
        )


WORDS = {5: "volume", 4: "image"}


@dataclass(frozen=True, eq=False, repr=False)
class ArrayExplanation(Explanation[ArrayPrediction]):
    """The explanation of an input that is no photo."""

    def input_record(self) -> dict[str, Any]:
        """Return the input's name and its shape."""
        shape = list(self.prediction.inputs.shape[1:])
        names = self.prediction.names
        return {
            "input": self.prediction.name,
            "shape": shape,
            **({} if names is None else {"names": list(names)}),
        }

    def rows(self) -> Sequence[PanelRow | SeriesRow]:
        """Return a row of the panel, or of the chart, for each target."""
        prediction, decimals = self.prediction, self.decimals
        targets = prediction.targets
        captions = [k.caption("for and against:", decimals=decimals) for k in targets]
        dims = prediction.inputs.dim()
        if dims not in WORDS:
            return series_rows(self.decomposition, captions, self.tests, prediction.names)
        shown_numbers = shown_bands(prediction.inputs, prediction.bands)
        count = prediction.inputs.shape[1]
        numbers = ", ".join(str(band + 1) for band in shown_numbers)
        of_bands = f", bands {numbers} of {count}" if len(shown_numbers) < count else ""
        verdict = prediction.verdict(decimals=decimals)
        rows = panel_rows(
            self.decomposition,
            photo_captions=[f"the {WORDS[dims]}{of_bands}\n{verdict}"] * len(targets),
            target_captions=captions,
            tests=self.tests,
            regions=[target.region for target in targets],
            bands=prediction.bands,
        )
        # An image of one channel may be a photo, but here it is none.
        return [replace(row, words=IMAGE_WORDS) for row in rows] if dims == 4 else rows

    def labels(self) -> Labels:
        """Return the names and bands that pictures show."""
        prediction = self.prediction
        names, bands = prediction.names, prediction.bands
        return Labels(
            targets=tuple(self.targets),
            captions=tuple(k.label(decimals=self.decimals) for k in prediction.targets),
            activation=prediction.classifier.activation if prediction.gives_classes else None,
            names=None if names is None else tuple(names),
            bands=None if bands is None else tuple(bands),
        )

    def figure(self, style: PanelStyle | None = None) -> Figure:
        """Return the panel, or the chart of a signal or a table's row.

        Args:
            style: How it looks, such as `dmbp.render.PanelStyle(smoothing=0)`.
        """
        rows = self.rows()
        panel = [row for row in rows if isinstance(row, PanelRow)]
        charts = [row for row in rows if isinstance(row, SeriesRow)]
        if charts:
            return draw_charts(charts, style)
        return draw_panel(panel, style, independent=self.prediction.has_independent_classes)
