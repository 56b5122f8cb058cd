"""Sample photos, read from scikit-image at run time (the `demo` extra): none are shipped here.

The cat (Stefan van der Walt, CC0), the astronaut Eileen Collins (NASA, public domain) and the
motorcycle (Daniel Scharstein, Middlebury stereo data).
"""

from importlib import import_module
from typing import Any

from PIL import Image

from dmbp.errors import PhotoError

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
