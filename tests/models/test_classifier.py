"""What of a photo is seen."""

from typing import get_args

import pytest
from PIL import Image

from dmbp.models import Preprocessing
from dmbp.models.classifier import Fit

PHOTO = Image.new("RGB", (300, 200))


@pytest.mark.parametrize(
    ("fit", "size"),
    [
        *(("crop", (64, 64)), ("squeeze", (64, 64))),
        *(("squeeze-crop", (64, 64)), ("whole", (96, 64))),
    ],
)
def test_size(fit: Fit, size: tuple[int, int]) -> None:
    seen = Preprocessing(resize=80, crop=64, fit=fit)
    assert seen.view(PHOTO).size == size
    assert seen.tensor(seen.view(PHOTO)).shape == (1, 3, size[1], size[0])


def test_one_channel() -> None:
    """Grey as Pillow makes it, and the mean and std of one channel."""
    seen = Preprocessing(crop=16, fit="squeeze", mean=(0.5,), std=(0.25,))
    inputs = seen.tensor(seen.view(Image.new("RGB", (30, 20), "white")))
    assert inputs.shape == (1, 1, 16, 16)
    assert inputs.unique().tolist() == [2.0]
    assert Preprocessing.for_channels(3) == Preprocessing.for_channels(None) == Preprocessing()
    assert len(Preprocessing.for_channels(1).mean) == 1


def test_what_is_left_out() -> None:
    """A red border: a crop of the centre does not see it, the others do."""
    photo = Image.new("RGB", (200, 200), "red")
    photo.paste(Image.new("RGB", (160, 160), "blue"), (20, 20))
    for fit in get_args(Fit):
        view = Preprocessing(resize=100, crop=60, fit=fit).view(photo)
        assert (view.getpixel((0, 0)) == (0, 0, 255)) is fit.endswith("crop")


def test_what_is_squeezed_before_it_is_cut() -> None:
    """Of a wide photo with red ends an eighteenth is left out on either side, or all of them."""
    photo = Image.new("RGB", (360, 180), "red")
    photo.paste(Image.new("RGB", (280, 180), "blue"), (40, 0))
    for fit, seen in (("squeeze-crop", (255, 0, 0)), ("crop", (0, 0, 255))):
        view = Preprocessing(resize=90, crop=80, fit=fit).view(photo)
        assert view.getpixel((2, 40)) == seen
