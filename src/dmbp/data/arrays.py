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
import gzip
import logging
import math
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from PIL import ImageSequence

from dmbp.data.photo import open_picture
from dmbp.errors import PhotoError, first_line
from dmbp.files import check_file, printable, read_text, shown
from dmbp.process import machine_memory, silence_logging

MAX_VALUES = 2**24
"""The most numbers of an input, as for the inputs of model files: a volume of 256³."""

MOST_MEMORY = 640
"""Bytes that explaining a volume takes for each of its numbers, with the default preset and a
network of two channels, beside PyTorch itself: a process of 2.8 GB for 160³."""

MAX_BYTES = 2**29
"""The largest file; a number takes at most 16 bytes, and there may be something else beside it."""

MAX_TEXT_BYTES = 2**25
"""The largest table; reading it takes seconds, and a gigabyte if its cells are short."""

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
    count = math.prod(shape)
    if count > MAX_VALUES:
        raise PhotoError(
            f"{shown(path)} has {size} numbers, more than {MAX_VALUES:,}: make it smaller first"
        )
    needed, memory = MOST_MEMORY * count, machine_memory()
    if needed > memory:
        raise PhotoError(
            f"{shown(path)} has {size} numbers; explaining them may take {needed / 2**30:.1f} GB, "
            f"and this machine has {memory / 2**30:.1f}: make it smaller first"
        )


def _as_numbers(path: Path, values: Any) -> Numbers:
    found = numpy.asarray(values)
    if found.dtype.kind not in "biuf":
        raise PhotoError(f"{shown(path)} holds {found.dtype}, not real numbers")
    with numpy.errstate(over="ignore"):  # infinities are refused afterwards
        return numpy.ascontiguousarray(found, dtype=numpy.float32)


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
    first = next((line for line in StringIO(text, newline=None) if line.strip()), "")
    separator = max(SEPARATORS, key=first.count)
    lines = csv.reader(StringIO(text, newline=None), delimiter=separator, strict=True)
    names: tuple[str, ...] | None = None
    numbers, width = array("d"), 0
    for line, cells in enumerate(lines, 1):
        if len(numbers) + len(cells) > MAX_VALUES:
            raise PhotoError(f"{shown(path)} has more than {MAX_VALUES:,} numbers")
        if numbers and len(cells) == width:  # nearly always, and there may be millions of rows
            with suppress(ValueError):
                numbers.extend(map(float, cells))
                continue
        if not any(cell.strip() for cell in cells):
            continue
        width = width or len(cells)
        if not numbers and names is None and not any(map(_is_number, cells)):
            names = tuple(cell.strip() for cell in cells)
            continue
        if len(cells) != width:
            raise PhotoError(
                f"{shown(path)}, line {line}: {len(cells)} cells, but there are {width} columns"
            )
        try:
            numbers.extend(map(float, cells))
        except ValueError as error:
            raise _no_number(path, line, cells, names) from error
    if not numbers:
        raise PhotoError(f"{shown(path)} has no rows of numbers")
    return ArrayFile(_as_numbers(path, numbers).reshape(-1, width), names, is_table=True)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _no_number(
    path: Path, line: int, cells: Sequence[str], names: Sequence[str] | None
) -> PhotoError:
    """Return the error about the first of a row's cells that is not a number."""
    column, cell = next((k, cell) for k, cell in enumerate(cells) if not _is_number(cell))
    name = repr(printable(names[column])[:40]) if names else str(column + 1)
    what = f"{printable(cell)[:40]!r} is not a number" if cell.strip() else "it is empty"
    return PhotoError(
        f"{shown(path)}, line {line}, column {name}: {what}; write numbers as the model was "
        "trained on them"
    )


def _package(name: str, path: Path) -> Any:
    """Import a package that reads a kind of file."""
    try:
        return import_module(name)
    except ImportError as error:
        raise PhotoError(
            f"{shown(path)} is read by the package {name}: pip install {name}"
        ) from error


NIFTI_HEADERS: Mapping[int, tuple[str, int, str]] = {
    348: ("Nifti1Image", 108, "f"),
    540: ("Nifti2Image", 168, "q"),
}
"""By its size, a header's class in nibabel, and where it says where the numbers begin, and how."""

MOST_EXTENSIONS = 2**24
"""The most bytes before the numbers. All are read, and a small `.nii.gz` may have gigabytes."""


def _read_nifti(path: Path) -> ArrayFile:
    nibabel = _package("nibabel", path)
    with (gzip.open if path.name.lower().endswith(".gz") else open)(path, "rb") as file:
        start: bytes = file.read(max(NIFTI_HEADERS))
    orders = {struct.unpack(f"{order}i", start[:4])[0]: order for order in "<>" if len(start) > 4}
    size = next((size for size in orders if size in NIFTI_HEADERS), None)
    if size is None or len(start) < size:
        raise PhotoError(f"{shown(path)} is no NIfTI file that can be read")
    name, place, kind = NIFTI_HEADERS[size]
    (offset,) = struct.unpack_from(f"{orders[size]}{kind}", start, place)
    if not size < offset <= MOST_EXTENSIONS:
        raise PhotoError(
            f"{shown(path)} cannot be read: it says that its numbers begin at byte {offset:g}, and "
            f"they begin after {size} bytes and before {MOST_EXTENSIONS:,}"
        )
    with silence_logging(logging.CRITICAL):
        image: Any = getattr(nibabel, name).from_filename(path)
    _check_shape(path, image.shape)
    values = _as_numbers(path, image.dataobj)
    # NIfTI's axes are x, y, z and then time or channels; those of a model are the other way round.
    return ArrayFile(numpy.ascontiguousarray(values.T))


DEFLATED = "1.2.840.10008.1.2.1.99"
"""The transfer syntax of files that are unpacked as a whole: megabytes may become gigabytes."""


def _read_dicom(path: Path) -> ArrayFile:
    pydicom = _package("pydicom", path)
    with path.open("rb") as file:
        start = file.read(132)
    if start[128:] != b"DICM":
        raise PhotoError(f"{shown(path)} is no DICOM file: DICM is missing at its beginning")
    with silence_logging(logging.CRITICAL):
        syntax = pydicom.filereader.read_file_meta_info(path).get("TransferSyntaxUID")
        if syntax == DEFLATED:
            raise PhotoError(f"{shown(path)} is deflated: save it without that compression")
        return _dicom_values(path, pydicom.dcmread(path))


def _dicom_values(path: Path, data: Any) -> ArrayFile:
    """Return the numbers of a DICOM file in the scanner's units."""
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
        size, bands = image.size, len(image.getbands())
        _check_shape(path, (count, image.height, image.width, bands))
        white = WHITE.get(image.mode, 255.0)
        pages: list[Numbers] = []
        for page in ImageSequence.Iterator(image):
            if (page.size, len(page.getbands())) != (size, bands):  # before it is decoded
                raise PhotoError(
                    f"{shown(path)} has pages of different sizes, which make no volume"
                )
            pages.append(_as_numbers(path, page))
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
