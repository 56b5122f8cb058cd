"""Reads inputs that are no photos: arrays of numbers, tables, signals and scans.

| ending | what is read | needs |
| --- | --- | --- |
| .npy | an array of any shape | |
| .csv, .tsv | rows of a table, or a signal with a column for each channel | |
| .nii, .nii.gz | a volume (depth, height, width), with channels first if it has any | nibabel |
| .dcm | an image (height, width) or a volume of frames, in the scanner's units | pydicom |
| .png, .tif, .tiff | the pages of an image, with all their bits and channels | |

`read_array` looks at a file's header before it reads the numbers: a file that claims to be huge
takes no memory. An `ArrayFile` says nothing about what its axes mean; that depends on the model.

Nothing in a file is ever run: pickled objects in `.npy` files are refused.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from PIL import ImageSequence

from dmbp.data.photo import open_picture
from dmbp.errors import PhotoError, first_line
from dmbp.files import check_file, printable, read_text, shown

MAX_VALUES = 2**26
"""The most numbers of an input: a volume of 406³, which takes 0.27 GB."""

MAX_BYTES = 2**30
"""The largest file; a number takes at most 16 bytes, but files of few numbers are small."""

MAX_TEXT_BYTES = 2**28
"""The largest table."""

MAX_AXES = 6
"""An input's axes: at most four in space and time, channels, and a batch of one."""

Numbers = NDArray[numpy.float32]


@dataclass(frozen=True)
class ArrayFile:
    """The numbers of a file as float32, without a batch.

    Attributes:
        values: The numbers.
        names: The names of a table's columns, if it has any; `values` are then (rows, columns).
        is_table: Whether they come from a text file with rows and columns.
    """

    values: Numbers
    names: tuple[str, ...] | None = None
    is_table: bool = False


def is_array_file(path: Path) -> bool:
    """Return whether a file's name says that it holds numbers and cannot be a photo."""
    return _ending(path) in ENDINGS and _ending(path) not in PICTURES


def read_array(path: Path) -> ArrayFile:
    """Read an input that is no photo; the table above lists the endings.

    Raises:
        PhotoError: If there is no such file, it is damaged or too large, it holds something else
            than finite numbers, or the package that reads it is not installed.
    """
    ending = _ending(path)
    if ending not in ENDINGS:
        raise PhotoError(
            f"{shown(path)} is no input that can be read; files end in {', '.join(ENDINGS)}"
        )
    check_file(path, what="file", error=PhotoError, most_bytes=MAX_BYTES)
    try:
        found = ENDINGS[ending](path)
    except PhotoError:
        raise
    except MemoryError as error:
        raise PhotoError(f"{shown(path)} cannot be read: there is not enough memory") from error
    except Exception as error:  # readers raise almost anything for a damaged file
        why = printable(first_line(error))[:200] or type(error).__name__
        raise PhotoError(f"{shown(path)} cannot be read: {why}") from error
    if not numpy.isfinite(found.values).all():
        raise PhotoError(f"{shown(path)} contains NaN or infinity, so it cannot be explained")
    return found


def _ending(path: Path) -> str:
    name = path.name.lower()
    return ".nii.gz" if name.endswith(".nii.gz") else Path(name).suffix


def _check_shape(path: Path, shape: Sequence[int]) -> None:
    """Raise a `PhotoError` if an array has no numbers, too many or too many axes."""
    size = "×".join(map(str, shape))
    if len(shape) == 0 or min(shape) < 1:
        raise PhotoError(f"{shown(path)} holds no numbers: its shape is {size or 'empty'}")
    if len(shape) > MAX_AXES:
        raise PhotoError(f"{shown(path)} has {len(shape)} axes; an input has at most {MAX_AXES}")
    if math.prod(shape) > MAX_VALUES:
        raise PhotoError(
            f"{shown(path)} has {size} numbers, more than {MAX_VALUES:,}: make it smaller first"
        )


def _as_numbers(path: Path, values: Any) -> Numbers:
    array = numpy.asarray(values)
    if array.dtype.kind not in "biuf":
        raise PhotoError(f"{shown(path)} holds {array.dtype}, not real numbers")
    with numpy.errstate(over="ignore"):  # infinities are refused afterwards
        return numpy.ascontiguousarray(array, dtype=numpy.float32)


def _read_npy(path: Path) -> ArrayFile:
    from numpy.lib import format as npy

    headers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    with path.open("rb") as file:
        try:
            version = npy.read_magic(file)
            shape, _, dtype = headers[version](file)
        except (ValueError, KeyError, SyntaxError) as error:
            raise PhotoError(f"{shown(path)} is no .npy file that can be read") from error
        begin = file.tell()
    if dtype.hasobject:
        raise PhotoError(
            f"{shown(path)} holds Python objects, which may run code: save an array of numbers "
            "with numpy.save"
        )
    _check_shape(path, shape)
    if path.stat().st_size - begin < math.prod(shape) * dtype.itemsize:
        raise PhotoError(f"{shown(path)} cannot be read: it ends before its last number")
    return ArrayFile(_as_numbers(path, numpy.load(path, allow_pickle=False)))


SEPARATORS = ",;\t"


def _read_table(path: Path) -> ArrayFile:
    text = read_text(path, what="table", error=PhotoError, most_bytes=MAX_TEXT_BYTES)
    first = next((line for line in text.splitlines() if line.strip()), "")
    separator = max(SEPARATORS, key=first.count)
    lines = csv.reader(text.splitlines(), delimiter=separator, strict=True)
    names: tuple[str, ...] | None = None
    rows: list[list[float]] = []
    for line, cells in enumerate(lines, 1):
        if not any(cell.strip() for cell in cells):
            continue
        if not rows and names is None and not any(map(_is_number, cells)):
            names = tuple(cell.strip() for cell in cells)
            continue
        width = len(names or (rows[0] if rows else cells))
        if len(cells) != width:
            raise PhotoError(
                f"{shown(path)}, line {line}: {len(cells)} cells, but there are {width} columns"
            )
        rows.append(_numbers_of(path, line, cells, names))
        if len(rows) * width > MAX_VALUES:
            raise PhotoError(f"{shown(path)} has more than {MAX_VALUES:,} numbers")
    if not rows:
        raise PhotoError(f"{shown(path)} has no rows of numbers")
    return ArrayFile(_as_numbers(path, rows), names, is_table=True)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _numbers_of(
    path: Path, line: int, cells: Sequence[str], names: Sequence[str] | None
) -> list[float]:
    """Return a row's cells as numbers."""
    for column, cell in enumerate(cells):
        if not _is_number(cell):
            name = repr(printable(names[column])) if names else str(column + 1)
            what = f"{printable(cell)[:40]!r} is not a number" if cell.strip() else "it is empty"
            raise PhotoError(
                f"{shown(path)}, line {line}, column {name}: {what}; write numbers as the model "
                "was trained on them"
            )
    return [float(cell) for cell in cells]


def _package(name: str, path: Path) -> Any:
    """Import a package that reads a kind of file."""
    try:
        return import_module(name)
    except ImportError as error:
        raise PhotoError(
            f"{shown(path)} is read by the package {name}: pip install {name}"
        ) from error


def _read_nifti(path: Path) -> ArrayFile:
    image: Any = _package("nibabel", path).load(path)
    _check_shape(path, image.shape)
    values = _as_numbers(path, image.dataobj)
    # NIfTI's axes are x, y, z and then time or channels; those of a model are the other way round.
    return ArrayFile(numpy.ascontiguousarray(values.T))


def _read_dicom(path: Path) -> ArrayFile:
    data: Any = _package("pydicom", path).dcmread(path)
    frames = int(data.get("NumberOfFrames") or 1)
    samples = int(data.get("SamplesPerPixel") or 1)
    shape = [frames, int(data.get("Rows") or 0), int(data.get("Columns") or 0), samples]
    _check_shape(path, shape)
    values = _as_numbers(path, data.pixel_array)
    slope, intercept = data.get("RescaleSlope"), data.get("RescaleIntercept")
    values = values * numpy.float32(1 if slope is None else slope)
    values = values + numpy.float32(0 if intercept is None else intercept)
    return ArrayFile(numpy.moveaxis(values, -1, 0) if samples > 1 else values)


DEEPEST = 65535.0
"""The white of 16 bits."""

WHITE: Mapping[str, float] = {"I;16": DEEPEST, "I;16B": DEEPEST, "I;16L": DEEPEST, "F": 1, "I": 1}
"""What the values of a picture are divided by, for modes that have no 8 bits."""


def _read_picture(path: Path) -> ArrayFile:
    """Read a picture's channels, from 0 to 1, or as they are if they have 32 bits."""
    with open_picture(path) as image:
        count = getattr(image, "n_frames", 1)
        _check_shape(path, (count, image.height, image.width, len(image.getbands())))
        white = WHITE.get(image.mode, 255.0)
        pages = [_as_numbers(path, page) for page in ImageSequence.Iterator(image)]
    if len({page.shape for page in pages}) > 1:
        raise PhotoError(f"{shown(path)} has pages of different sizes, which make no volume")
    values = numpy.stack(pages) if len(pages) > 1 else pages[0]
    bands = numpy.moveaxis(values, -1, 0) if pages[0].ndim == 3 else values
    return ArrayFile(numpy.ascontiguousarray(bands / numpy.float32(white)))


PICTURES: Mapping[str, Callable[[Path], ArrayFile]] = dict.fromkeys(
    (".png", ".tif", ".tiff"), _read_picture
)

ENDINGS: Mapping[str, Callable[[Path], ArrayFile]] = {
    ".npy": _read_npy,
    ".csv": _read_table,
    ".tsv": _read_table,
    ".nii": _read_nifti,
    ".nii.gz": _read_nifti,
    ".dcm": _read_dicom,
    **PICTURES,
}
"""The reader of each kind of file."""
