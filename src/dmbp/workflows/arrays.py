"""Explains inputs that are no photos: volumes, images of many bands, signals and tables.

A file of numbers does not say what its axes are, but the model does: `inputs_of` finds how the
numbers fit what the model takes, adding a channel, taking a table's rows one by one or its columns
as the channels of a signal. The numbers are given to the model as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from dmbp.data import ArrayFile
from dmbp.errors import InputError, ModelError, PhotoError
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
    encode_figure,
    panel_rows,
    series_rows,
)
from dmbp.render.pictures import shown_bands
from dmbp.targets import TargetContext
from dmbp.workflows.explained_target import explained_targets
from dmbp.workflows.explanation import Explanation
from dmbp.workflows.prediction import InputPrediction

MAX_ROWS = 32
"""The most rows of a table that are explained at once."""

Shape = tuple[int | None, ...]
"""The shape of an input without its batch; None stands for any size."""

CONVOLUTIONS = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}


def expected_shape(classifier: Classifier) -> Shape | None:
    """Return the shape of an input that a model takes, as far as it can be told.

    A file may state it; otherwise the first convolution or linear layer tells the channels or
    features. None means that nothing does.
    """
    if classifier.input_shape is not None:
        return classifier.input_shape
    for part in classifier.module.modules():
        for kind, dims in CONVOLUTIONS.items():
            if isinstance(part, kind):
                return (part.in_channels, *(None,) * dims)
        if isinstance(part, nn.Linear):
            return (part.in_features,)
    return None


def takes_photos(classifier: Classifier) -> bool:
    """Return whether a model takes photos, unless it certainly takes something else."""
    if classifier.input_shape is not None:
        return False
    expected = expected_shape(classifier)
    return expected is None or len(expected) == 1 or (len(expected) == 3 and expected[0] in (1, 3))


EXAMPLE_SIDES = {1: 1024, 2: 224, 3: 32}
"""The sides of an example of a signal, an image or a volume, if a model takes any."""


def example_shape(classifier: Classifier) -> tuple[int, ...]:
    """Return the shape of an input that a model may be examined on, without its batch."""
    preprocessing = classifier.preprocessing
    expected = None if takes_photos(classifier) else expected_shape(classifier)
    if expected is None:
        return (len(preprocessing.mean), *preprocessing.size)
    side = EXAMPLE_SIDES.get(len(expected) - 1, 32)
    return tuple(side if size is None else size for size in expected)


def inputs_of(file: ArrayFile, name: str, classifier: Classifier) -> list[Tensor]:
    """Return the inputs in a file, each (1, …), as the model takes them.

    Raises:
        PhotoError: If the model takes inputs of another shape, or there are too many rows.
    """
    values = torch.from_numpy(file.values)
    expected = expected_shape(classifier)
    readings = list(_readings(values, is_table=file.is_table))
    if expected is not None:
        for reading in readings:
            if _fits(tuple(reading.shape[1:]), expected):
                return _rows(reading, name)
    if classifier.input_shape is None:  # the first layer may see something else than the input
        for reading in readings:
            if _runs(classifier, reading[:1]):
                return _rows(reading, name)
    size = "×".join(map(str, file.values.shape))
    takes = "" if expected is None else f" It takes inputs of shape {_text(expected)}."
    raise PhotoError(
        f"{shown(name)} has {size} numbers, which {shown(classifier.name)} does not take.{takes}"
    )


def _readings(values: Tensor, *, is_table: bool) -> Iterator[Tensor]:
    """Yield what the numbers may be, as batches: one input, with or without channels, or rows."""
    if is_table:
        yield values  # each row is an input
        yield values.T[None]  # each column is a channel
        if values.shape[1] == 1:
            yield values.T
        return
    yield values[None]
    yield values[None, None]
    yield values


def _rows(batch: Tensor, name: str) -> list[Tensor]:
    if len(batch) > MAX_ROWS:
        raise PhotoError(
            f"{shown(name)} has {len(batch):,} rows; at most {MAX_ROWS} are explained at once: "
            "keep those that you want to explain"
        )
    return [row.contiguous() for row in batch.split(1)]


def _fits(shape: tuple[int, ...], expected: Shape) -> bool:
    return len(shape) == len(expected) and all(
        wanted in (None, side) for side, wanted in zip(shape, expected, strict=True)
    )


def _runs(classifier: Classifier, inputs: Tensor) -> bool:
    try:
        run_model(classifier, classifier.move_inputs(inputs))
    except (ModelError, InputError):
        return False
    return True


def _text(shape: Shape) -> str:
    return "×".join("any" if side is None else str(side) for side in shape)


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
    targets: Sequence[str]
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


@dataclass(frozen=True)
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
        return panel_rows(
            self.decomposition,
            photo_captions=[f"the {WORDS[dims]}{of_bands}\n{verdict}"] * len(targets),
            target_captions=captions,
            tests=self.tests,
            regions=[target.region for target in targets],
            bands=prediction.bands,
        )

    def picture(self, style: PanelStyle | None = None, *, suffix: str = ".png") -> bytes:
        """Return the panel or the chart as the content of an image file."""
        panel: list[PanelRow] = []
        charts: list[SeriesRow] = []
        for row in self.rows():
            if isinstance(row, PanelRow):
                panel.append(row)
            else:
                charts.append(row)
        if charts:
            return encode_figure(draw_charts(charts, style), suffix)
        independent = self.prediction.has_independent_classes
        return encode_figure(draw_panel(panel, style, independent=independent), suffix)
