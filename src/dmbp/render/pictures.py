"""Results reach the disk whole or not at all.

Tensors as pictures: arrays (height, width, 3).
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from dmbp.errors import InputError, OutputError
from dmbp.render.colour import Array

FORMATS = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
DOTS_PER_INCH = 110


def figure_bytes(figure: Figure, suffix: str) -> bytes:
    """A figure as a file's content."""
    if suffix not in FORMATS:
        raise OutputError(f"pictures are written as {', '.join(FORMATS)}, not {suffix!r}")
    buffer = BytesIO()
    figure.savefig(buffer, format=FORMATS[suffix], dpi=DOTS_PER_INCH, facecolor="white")
    return buffer.getvalue()


def write_whole(contents: Mapping[Path, bytes]) -> None:
    """Write several files so that either all are there in the end or none is."""
    for path in contents:
        if path.is_dir():
            raise OutputError(f"cannot write {path}: a folder has that name")
    parts = {path: path.with_name(f".{path.name}.part") for path in contents}
    try:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            parts[path].write_bytes(content)
        for path, part in parts.items():
            os.replace(part, path)
    except OSError as error:
        for part in parts.values():
            with suppress(OSError):
                part.unlink()
        where = next(iter(contents)).parent
        raise OutputError(f"cannot write to {where}: {error.strerror or error}") from error


def check_drawable(inputs: Tensor) -> None:
    """Refuse what is no batch of images."""
    if inputs.dim() != 4 or inputs.shape[1] not in (1, 3):
        raise InputError(
            "only images of one or three channels can be drawn, not inputs of shape "
            f"{tuple(inputs.shape)}"
        )


def as_photo(given: Any, size: tuple[int, int]) -> Array:
    """A photo as RGB in [0, 1], from Pillow's, an array or a tensor, if it has that size.

    Whole numbers are those of a file, 0 to 255; channels come last, or first in a tensor.
    """
    if isinstance(given, Tensor):
        given = given.detach().cpu()
        given = (given.permute(1, 2, 0) if len(given) in (1, 3) else given).numpy()
    array = numpy.asarray(given.convert("RGB") if isinstance(given, Image.Image) else given)
    array = array / 255 if numpy.issubdtype(array.dtype, numpy.integer) else array
    array = array[..., None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[2] not in (1, 3) or array.shape[:2] != size:
        raise InputError(
            f"a photo of shape {array.shape} was given for an input of {size[0]} × {size[1]} "
            f"pixels: it is what the model saw, {(*size, 3)}"
        )
    if not (array.min() >= 0 and array.max() <= 1):
        raise InputError(
            f"a photo's values are between 0 and 1, or whole numbers to 255, not from "
            f"{array.min():.3g} to {array.max():.3g}"
        )
    return numpy.repeat(array, 3, axis=2) if array.shape[2] == 1 else array


def picture(image: Tensor) -> Array:
    """An image (channel, height, width) with its values as they are; grey in all three channels."""
    array = image.detach().cpu().double().permute(1, 2, 0).numpy()
    return numpy.repeat(array, 3, axis=2) if array.shape[2] == 1 else array


def stretched(image: Tensor) -> Array:
    """An image with its darkest value black and its brightest white."""
    array = picture(image)
    low, high = array.min(), array.max()
    return (array - low) / max(high - low, 1e-12)
