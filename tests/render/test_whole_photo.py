"""The evidence over the whole photo."""

import numpy
import pytest
from PIL import Image

from dmbp.render import PanelStyle, draw_whole_photo, spread_over_photo
from dmbp.render.colour import Array


def ramp(height: int, width: int) -> Array:
    """Values that grow by 1 from pixel to pixel and by 10 from row to row."""
    return numpy.add.outer(10.0 * numpy.arange(height), numpy.arange(width))


def test_a_map_of_the_photos_own_size_stays_as_it_is() -> None:
    values = ramp(5, 7)
    assert numpy.allclose(spread_over_photo(values, (0, 0, 7, 5), (7, 5)), values)


def test_a_map_lies_where_the_model_looked() -> None:
    values = ramp(4, 6)
    spread = spread_over_photo(values, (10, 20, 34, 36), (50, 60))  # 4 pixels for each of the map
    assert spread.shape == (60, 50)
    seen = numpy.zeros((60, 50), bool)
    seen[20:36, 10:34] = True
    assert numpy.array_equal(numpy.isfinite(spread), seen)
    # Between the middles of its own pixels, a ramp is interpolated exactly.
    x, y = numpy.arange(12, 32), numpy.arange(22, 34)
    expected = numpy.add.outer(10 * ((y + 0.5 - 20) / 4 - 0.5), (x + 0.5 - 10) / 4 - 0.5)
    assert numpy.allclose(spread[22:34, 12:32], expected, atol=1e-4)


def test_a_view_that_is_larger_than_the_photo_fits() -> None:
    spread = spread_over_photo(numpy.ones((64, 64)), (-8, 0, 24, 32), (16, 32))
    assert numpy.array_equal(spread, numpy.ones((32, 16)))


@pytest.mark.parametrize("height", [40, 300])
def test_what_the_model_did_not_see_is_dark(height: int) -> None:
    photo = Image.new("RGB", (80, height), (200, 100, 50))
    attribution = numpy.zeros((40, 40))
    attribution[20:, :] = 1
    attribution[:20, :10] = -1
    corners = (20, 0, 60, height)
    picture = numpy.asarray(draw_whole_photo(photo, attribution, corners, style=PanelStyle(0)))
    assert picture.shape == (height, 80, 3)
    assert (picture[5, 5] == (80, 40, 20)).all()
    red, blue = picture[height * 3 // 4, 40].astype(int), picture[height // 4, 24].astype(int)
    assert red[0] > red[2] + 50
    assert blue[2] > blue[0] + 50
    inside = picture[height // 4, 45]
    assert inside.min() == inside.max() > 150  # the photo in pale grey
