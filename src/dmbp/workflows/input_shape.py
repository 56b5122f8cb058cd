"""What a model takes, and how numbers fit it.

A file or an array of numbers does not say what its axes are, but the model does: `inputs_of` finds
how the numbers fit what the model takes, adding a channel, taking a table's rows one by one or its
columns as the channels of a signal.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from dmbp.errors import InputError, ModelError, PhotoError
from dmbp.files import shown
from dmbp.models import Classifier
from dmbp.models.classifier import run_model

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


def inputs_of(
    values: Tensor, name: str, classifier: Classifier, *, is_table: bool = False
) -> list[Tensor]:
    """Return the inputs among numbers, each (1, …), as the model takes them.

    Args:
        values: One input, with or without a batch and channels, or a batch of them.
        name: What messages call them.
        classifier: The model.
        is_table: Whether they are a table's rows and columns.

    Raises:
        PhotoError: If the model takes inputs of another shape, or there are too many rows.
    """
    expected = expected_shape(classifier)
    readings = list(_readings(values, is_table=is_table))
    if expected is not None:
        for reading in readings:
            if _fits(tuple(reading.shape[1:]), expected):
                return _rows(reading, name)
    if classifier.input_shape is None:  # the first layer may see something else than the input
        for reading in readings:
            if _runs(classifier, reading[:1]):
                return _rows(reading, name)
    size = "×".join(map(str, values.shape))
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
