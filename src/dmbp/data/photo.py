"""Photographs as people have them: any mode, any size, rotated by a flag, sometimes broken.

Sample photos, read from scikit-image at run time (the `demo` extra): none are shipped here.

The cat (Stefan van der Walt, CC0), the astronaut Eileen Collins (NASA, public domain) and the
motorcycle (Daniel Scharstein, Middlebury stereo data).
"""

import os
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy
from PIL import Image, ImageOps, UnidentifiedImageError

from dmbp.errors import PhotoError

SMALLEST_SIDE = 16
LARGEST_PIXELS = 150_000_000
"""Above any camera's; a larger file is a mistake or an attack, and would take gigabytes."""


ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def photo_names(folder: Path) -> list[str]:
    """The names of the photos in a folder, sorted."""
    return sorted(name for name in os.listdir(folder) if name.lower().endswith(ENDINGS))


def photo_paths(given: Sequence[Path]) -> list[Path]:
    """The files given, and for a folder the photos in it, by name."""
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = [path / name for name in photo_names(path)]
            if not inside:
                raise PhotoError(
                    f"there are no photos in the folder {path} itself; those in folders inside it "
                    "are not looked for"
                )
            found += inside
        else:
            found.append(path)
    return found


def read_photo(path: Path) -> Image.Image:
    """An upright RGB image."""
    with size_unremarked():
        return decode_photo(path)


@contextmanager
def size_unremarked() -> Generator[None]:
    """Leave it to us to say what is too large, and Pillow silent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def decode_photo(path: Path) -> Image.Image:
    """As `read_photo`, for threads, inside one `size_unremarked` around all of them.

    Filters of warnings belong to the whole process: threads that each set their own and put back
    what they found would leave others' behind.
    """
    try:
        if not path.exists():
            raise PhotoError(f"there is no file {path}")
        with Image.open(path) as image:
            _check_size(path, *image.size)
            image.load()
            return _to_rgb(ImageOps.exif_transpose(image))
    except UnidentifiedImageError as error:
        raise PhotoError(f"{path} is not an image that can be read") from error
    except Image.DecompressionBombError as error:
        raise PhotoError(_too_large(path)) from error
    except (OSError, SyntaxError, ValueError) as error:
        raise PhotoError(f"{path} cannot be read: {error}") from error


def _check_size(path: Path, width: int, height: int) -> None:
    if min(width, height) < SMALLEST_SIDE:
        raise PhotoError(
            f"{path} is {width}×{height} pixels; a photo needs at least {SMALLEST_SIDE} a side"
        )
    if width * height > LARGEST_PIXELS:
        raise PhotoError(_too_large(path))


def _too_large(path: Path) -> str:
    return f"{path} has more than {LARGEST_PIXELS // 1_000_000} megapixels; make it smaller first"


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        return _from_grey(numpy.asarray(image).astype(numpy.float64) / 65535)
    if image.mode in ("I", "F"):  # no fixed range: black is the darkest pixel, white the brightest
        values = numpy.asarray(image).astype(numpy.float64)
        return _from_grey((values - values.min()) / max(float(numpy.ptp(values)), 1e-12))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _from_grey(brightness: numpy.ndarray) -> Image.Image:
    return Image.fromarray(numpy.round(brightness * 255).astype(numpy.uint8)).convert("RGB")


SIDE = 320


def sample_photos() -> dict[str, tuple[Image.Image, tuple[str, ...]]]:
    """Sample photos by name, each with the VOC classes it is worth asking about.

    The collage shows a cat beside a person: what speaks for one speaks against the other.
    """
    data = _scikit_image_data()
    cat = Image.fromarray(data.chelsea())
    astronaut = Image.fromarray(data.astronaut())
    motorcycle = Image.fromarray(data.stereo_motorcycle()[0])
    return {
        # The whole face of each, squeezed a little to fit half a square.
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
    """Two photos, a square together."""
    square = Image.new("RGB", (SIDE, SIDE))
    for photo, start in ((left, 0), (right, SIDE // 2)):
        square.paste(photo.resize((SIDE // 2, SIDE), Image.Resampling.BICUBIC), (start, 0))
    return square
