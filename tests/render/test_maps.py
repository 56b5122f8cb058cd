"""`show` and `grid`: maps of any method over a photo."""

import numpy
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from dmbp.errors import InputError
from dmbp.render import grid, show
from dmbp.render.colour import Array

HALVES = torch.cat([torch.ones(1, 8, 4), -torch.ones(1, 8, 4)], 2)
"""Positive on the left, negative on the right."""


def drawn(figure: Figure) -> dict[str, Array]:
    """The pictures of a figure by their titles."""
    return {
        axes.get_title(): numpy.asarray(axes.get_images()[0].get_array())
        for axes in figure.axes
        if axes.get_images()
    }


def is_red_then_blue(picture: Array) -> bool:
    quarter = picture.shape[1] // 4
    left, right = picture[:, :quarter].mean((0, 1)), picture[:, -quarter:].mean((0, 1))
    return bool(left[0] > left[2] + 0.3 and right[2] > right[0] + 0.3)


PHOTOS = [
    Image.new("L", (8, 8), 128),
    numpy.full((8, 8, 3), 128, dtype=numpy.uint8),
    numpy.full((8, 8), 0.5),
    torch.full((3, 8, 8), 0.5),
    torch.randn(1, 3, 8, 8),
]


@pytest.mark.parametrize("photo", PHOTOS)
@pytest.mark.parametrize("values", [HALVES, HALVES[None], HALVES[0].numpy()])
def test_photos_and_maps_in_any_form(photo: object, values: object) -> None:
    pictures = drawn(show(photo, values, caption="mine"))
    assert list(pictures) == ["the photo", "mine"]
    assert pictures["the photo"].shape == (8, 8, 3)
    assert is_red_then_blue(pictures["mine"])


def test_a_larger_photo_is_drawn_at_its_own_size() -> None:
    pictures = drawn(grid(Image.new("RGB", (64, 64)), {"a": HALVES, "b": -HALVES}))
    assert pictures["a"].shape == (64, 64, 3)
    assert is_red_then_blue(pictures["a"])
    assert is_red_then_blue(pictures["b"][:, ::-1])


@pytest.mark.parametrize(
    ("photo", "values", "sentence"),
    [
        (Image.new("RGB", (16, 8)), HALVES, "8×8 does not lie over a photo of 8×16"),
        (torch.rand(2, 3, 8, 8), HALVES, "give one image"),
        (torch.rand(3, 8, 8), HALVES[None].repeat(2, 1, 1, 1), "give that of one image"),
        (torch.rand(3, 8, 8), HALVES * float("nan"), "NaN or infinite"),
        (numpy.full((8, 8), 3.0), HALVES, "between 0 and 1, or whole numbers to 255"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(photo: object, values: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        show(photo, values)


def test_no_map() -> None:
    with pytest.raises(InputError, match="there is no map to draw"):
        grid(PHOTOS[0], {})
