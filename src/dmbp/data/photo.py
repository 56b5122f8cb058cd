"""Reads photo files as upright RGB images, whatever their mode, size or orientation flag.

`read_photo` raises a `PhotoError` for a file that is broken, tiny, huge or of another format than
those of `FORMATS`; its content decides, not its name. `sample_photos` takes its photos from
scikit-image at run time (the `demo` extra), because dmbp does not include any: the cat (Stefan van
der Walt, CC0), the astronaut Eileen Collins (NASA, public domain) and the motorcycle (Daniel
Scharstein, Middlebury stereo data).
"""

import ctypes
import logging
import os
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy
from PIL import Image, ImageOps, UnidentifiedImageError, _imaging

from dmbp.errors import PhotoError, first_line
from dmbp.files import check_file, is_folder, printable, reason, shown

MIN_SIDE = 16
MAX_PIXELS = 64_000_000
"""Decoding takes up to 20 bytes for each pixel, so the largest photo and PyTorch need 1.7 GB."""

MAX_RATIO = 50
"""How many times as long as the other a side may be: models scale the short side to hundreds of
pixels, and the long side grows with it."""

MAX_BYTES = 2**29
"""More than an uncompressed photo of `MAX_PIXELS` takes at 16 bits for each of four channels; some
decoders read the whole file at once."""

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP")
"""Pillow's names of the formats that are read. Its other decoders are rarely used, and some run
other programs."""

SAMPLE_SIDE = 320
"""Height and width of the collage among the sample photos."""

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def photo_names(folder: Path) -> list[str]:
    """Return the names of the photos in a folder, sorted.

    Raises:
        PhotoError: If the folder cannot be read.
    """
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise PhotoError(f"the folder {shown(folder)} cannot be read: {reason(error)}") from error
    return sorted(name for name in names if name.lower().endswith(SUFFIXES))


def photo_paths(paths: Sequence[Path]) -> list[Path]:
    """Return paths with every folder replaced by the photos in it.

    Args:
        paths: Files and folders.

    Returns:
        The files in the same order; the photos of a folder are sorted by name.

    Raises:
        PhotoError: If a folder cannot be read or has no photos. Folders inside it are not searched.
    """
    files: list[Path] = []
    for path in paths:
        if is_folder(path):
            inside = [path / name for name in photo_names(path)]
            if not inside:
                raise PhotoError(
                    f"there are no photos in the folder {shown(path)} itself; folders inside it "
                    "are not searched"
                )
            files += inside
        else:
            files.append(path)
    return files


def read_photo(path: Path, *, deep: bool = False) -> Image.Image:
    """Read a photo.

    Greyscale, 16-bit, floating-point, palette and CMYK images become RGB, transparent pixels turn
    white, and the rotation in the Exif data is applied.

    Args:
        path: The file.
        deep: Whether a greyscale image of 16 bits keeps them all: it becomes one of floating-point
            numbers (Pillow's mode F), from 0 to 1.

    Returns:
        An upright RGB image.

    Raises:
        PhotoError: If there is no such file, it is not a regular file of at most 512 MiB, its
            content is not of one of the formats `FORMATS` or cannot be decoded, a value is NaN or
            infinite, a side is shorter than 16 pixels or 50 times as long as the other, or it has
            more than 64 megapixels.
    """
    with without_size_warnings():
        return decode_photo(path, deep=deep)


@contextmanager
def without_size_warnings() -> Generator[None]:
    """Silence Pillow's warning about large images; `MAX_PIXELS` is the limit here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def decode_photo(path: Path, *, deep: bool = False) -> Image.Image:
    """Read a photo like `read_photo`, without changing the filters for warnings.

    This is for threads, with one `without_size_warnings` around all of them: filters belong to the
    whole process, and threads that each set and restore them may leave some set.
    """
    with open_picture(path) as image:
        return photo_of(image, shown(path), deep=deep)


def photo_of(
    source: bytes | Image.Image,
    name: str,
    *,
    deep: bool = False,
    formats: Sequence[str] = FORMATS,
    max_pixels: int = MAX_PIXELS,
) -> Image.Image:
    """Return a photo in memory as `read_photo` returns one in a file.

    Args:
        source: The content of a file, or a Pillow image.
        name: What messages call the photo.
        deep: As for `read_photo`.
        formats: Pillow's names of the formats that are read.
        max_pixels: The most pixels.

    Raises:
        PhotoError: As for `read_photo`.
    """
    if isinstance(source, bytes):
        with without_size_warnings(), _opened(BytesIO(source), name, formats, max_pixels) as image:
            return photo_of(image, name, deep=deep, max_pixels=max_pixels)
    _check_size(name, *source.size, max_pixels=max_pixels)
    try:
        source.load()
    except ValueError as error:  # it was closed
        raise PhotoError(f"{name} cannot be read: {first_line(error)}") from error
    upright = ImageOps.exif_transpose(source)
    return _to_floating(upright) if deep and _is_deep(upright) else _to_rgb(upright)


def count_pixels(path: Path) -> int:
    """Return how many pixels a photo has, by its header, or raise a `PhotoError`.

    Like `decode_photo`, this does not change the filters for warnings.
    """
    with open_picture(path) as image:
        return image.width * image.height


def check_photo(path: Path) -> None:
    """Raise a `PhotoError` if a file is not a photo, or is too small or too large.

    Only the file's header is read; `read_photo` also detects damaged pixels.
    """
    with without_size_warnings(), open_picture(path):
        pass


@contextmanager
def open_picture(path: Path) -> Generator[Image.Image]:
    """Open a picture and check its size; errors, also inside, are raised as a `PhotoError`."""
    check_file(path, what="file", error=PhotoError, most_bytes=MAX_BYTES)
    with _opened(path, shown(path)) as image:
        yield image


@contextmanager
def _opened(
    file: Path | BytesIO,
    name: str,
    formats: Sequence[str] = FORMATS,
    max_pixels: int = MAX_PIXELS,
) -> Generator[Image.Image]:
    """Open a picture on disk or in memory; `name` is what messages call it."""
    _silence_decoders()
    try:
        with Image.open(file, formats=tuple(formats)) as image:
            _check_size(name, *image.size, max_pixels=max_pixels)
            yield image
    except PhotoError:
        raise
    except UnidentifiedImageError as error:
        *names, last = formats
        raise PhotoError(
            f"{name} is not an image that can be read: its content is not "
            f"{', '.join(names)} or {last}"
        ) from error
    except Image.DecompressionBombError as error:
        raise PhotoError(_too_large(name, max_pixels)) from error
    except OSError as error:
        why = reason(error) if error.errno else first_line(error)
        raise PhotoError(f"{name} cannot be read: {why}") from error
    except Exception as error:  # decoders raise almost anything for a damaged file
        why = "there is not enough memory" if isinstance(error, MemoryError) else first_line(error)
        raise PhotoError(f"{name} cannot be read: {printable(why)}") from error


@cache
def _silence_decoders() -> None:
    """Keep libtiff and Pillow's log from printing about damaged files.

    Pillow raises an exception for them, too. A log that the user has set up still gets its lines.
    The search for the function begins at Pillow's module and ends at the libraries it was linked
    with. If libtiff is not among them, it still prints.
    """
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    with suppress(OSError, AttributeError):
        set_handler = ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler
        set_handler.argtypes = [ctypes.c_void_p]
        set_handler.restype = ctypes.c_void_p
        set_handler(None)


def _check_size(name: str, width: int, height: int, *, max_pixels: int) -> None:
    if min(width, height) < MIN_SIDE:
        raise PhotoError(
            f"{name} is {width}×{height} pixels; a photo needs at least {MIN_SIDE} per side"
        )
    if max(width, height) > MAX_RATIO * min(width, height):
        raise PhotoError(
            f"{name} is {width}×{height} pixels; one side may be at most {MAX_RATIO} times "
            "as long as the other: crop it first"
        )
    if width * height > max_pixels:
        raise PhotoError(_too_large(name, max_pixels))


def _too_large(name: str, max_pixels: int) -> str:
    return f"{name} has more than {max_pixels // 1_000_000} megapixels; make it smaller first"


def _is_deep(image: Image.Image) -> bool:
    """Return whether an image is grey and has 16 bits."""
    return image.mode.startswith("I;16")


def _to_floating(image: Image.Image) -> Image.Image:
    """Return an image of 16 bits as floating-point numbers from 0 to 1."""
    return Image.fromarray(numpy.asarray(image).astype(numpy.float32) / 65535)


def _to_rgb(image: Image.Image) -> Image.Image:
    if _is_deep(image):
        values = numpy.asarray(image).astype(numpy.float64)
        return _from_grey(values, darkest=0, brightest=65535)
    if image.mode in ("I", "F"):  # without a fixed range, the darkest pixel becomes black
        values = numpy.asarray(image).astype(numpy.float64)
        if not numpy.isfinite(values).all():
            raise ValueError("it has pixels that are NaN or infinite")
        return _from_grey(values, darkest=float(values.min()), brightest=float(values.max()))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _from_grey(values: numpy.ndarray, *, darkest: float, brightest: float) -> Image.Image:
    """Return values as a grey picture; they are scaled in place, since a copy takes 0.5 GB."""
    values -= darkest
    values /= max(brightest - darkest, 1e-12)
    values *= 255
    pixels = numpy.round(values, out=values).astype(numpy.uint8)
    return Image.fromarray(pixels).convert("RGB")


def sample_photos() -> dict[str, tuple[Image.Image, tuple[str, ...]]]:
    """Return the sample photos by name, each with the VOC classes worth explaining on it.

    The collage shows a cat beside a person: evidence for one is evidence against the other.

    Returns:
        For each name an RGB image and the names of its classes.

    Raises:
        PhotoError: If scikit-image is not installed.
    """
    data = _scikit_image_data()
    cat = Image.fromarray(data.chelsea())
    astronaut = Image.fromarray(data.astronaut())
    motorcycle = Image.fromarray(data.stereo_motorcycle()[0])
    return {
        # Crops that show both faces whole, squeezed a little to fit half a square.
        "collage": (
            _side_by_side(cat.crop((130, 0, 370, 300)), astronaut.crop((128, 0, 384, 512))),
            ("cat", "person"),
        ),
        "motorcycle": (motorcycle, ("motorbike",)),
        "astronaut": (astronaut, ("person",)),
        "cat": (cat, ("cat",)),
    }


def _scikit_image_data() -> Any:
    try:
        return import_module("skimage.data")
    except ImportError as error:
        raise PhotoError(
            "the sample photos come from scikit-image: pip install 'dmbp[demo]'"
        ) from error


def _side_by_side(left: Image.Image, right: Image.Image) -> Image.Image:
    """Return one square image with the two photos as its halves."""
    square = Image.new("RGB", (SAMPLE_SIDE, SAMPLE_SIDE))
    for photo, start in ((left, 0), (right, SAMPLE_SIDE // 2)):
        half = photo.resize((SAMPLE_SIDE // 2, SAMPLE_SIDE), Image.Resampling.BICUBIC)
        square.paste(half, (start, 0))
    return square
