"""Colours mean what the legend says."""

import numpy
import pytest

from dmbp.render import PALETTES
from dmbp.render.colour import (
    darkest_magnitude,
    linear_map_colours,
    signed_over_photo,
    smooth_evidence,
    smooth_map,
    tint_changed,
)


def test_red_for_blue_against_white_for_nothing() -> None:
    photo = numpy.ones((1, 3, 3))
    picture = signed_over_photo(numpy.array([[1.0, 0.0, -1.0]]), photo, scale=1.0, faint=0.5)
    red, white, blue = picture[0]
    assert red[0] > red[2] + 0.2
    assert blue[2] > blue[0] + 0.2
    assert white.tolist() == [1, 1, 1]


def test_the_strongest_half_per_cent_is_clipped() -> None:
    values = numpy.concatenate([numpy.ones(999), [1e6]])
    assert darkest_magnitude(values) == pytest.approx(1.0)
    assert darkest_magnitude(numpy.zeros(4)) == 1.0


def test_smoothing_keeps_the_sum_inside() -> None:
    dot = numpy.zeros((41, 41))
    dot[20, 20] = 1
    spread = smooth_map(dot, 2.0)
    assert spread.sum() == pytest.approx(1)
    assert spread.max() < 0.1
    assert smooth_map(dot, 0) is dot


@pytest.mark.parametrize(("shape", "sigma"), [((5, 7), 3.0), ((300, 20), 1.2), ((600, 9), 60.0)])
def test_smoothing_is_a_convolution(shape: tuple[int, int], sigma: float) -> None:
    """Of more rows than a block has, of fewer, and with a kernel wider than a block."""
    array = numpy.random.default_rng(0).normal(size=shape)
    radius = max(1, round(3 * sigma))
    weights = numpy.exp(-0.5 * (numpy.arange(-radius, radius + 1) / sigma) ** 2)
    weights /= weights.sum()
    expected = numpy.pad(array, radius)
    for axis in (0, 1):
        expected = numpy.apply_along_axis(numpy.convolve, axis, expected, weights, "same")
    expected = expected[radius:-radius, radius:-radius]
    assert smooth_map(array, sigma) == pytest.approx(expected, abs=1e-12)


def test_windows_do_not_show_as_boxes_and_detail_stays() -> None:
    """Drawn evenly, windows lose their edges; speckled, they keep their speckles."""
    boxes = numpy.zeros((160, 160))
    boxes[40:100, 40:80] = 1
    boxes[100:140, 80:140] = -0.5
    speckles = boxes * 4 * (numpy.random.default_rng(0).random(boxes.shape) > 0.75)
    steps = [
        numpy.abs(numpy.diff(smooth_evidence(array, 1.9), axis=1)).max()
        for array in (boxes, speckles)
    ]
    assert steps[0] < 0.08  # a step of 1 is spread over more than 12 pixels
    assert steps[1] > 3 * steps[0]
    smooth = smooth_evidence(boxes, 1.9)
    assert smooth[70, 60] > 0.8
    assert smooth[120, 110] < -0.4
    assert smooth_evidence(boxes, 0) is boxes


def test_evidence_does_not_fade_at_the_borders() -> None:
    assert smooth_evidence(numpy.ones((40, 40)), 1.0) == pytest.approx(numpy.ones((40, 40)))


def test_exactly_the_changed_pixels_are_tinted() -> None:
    changed = (numpy.random.default_rng(0).random((8, 8)) > 0.7).astype(float)
    photo, replaced = numpy.full((8, 8, 3), 0.2), numpy.full((8, 8, 3), 0.4)
    picture = tint_changed(photo, replaced, changed, "#ff0000")
    is_changed = changed > 0
    assert is_changed.any()
    assert (picture[~is_changed] == 0.2).all()
    assert picture[is_changed] == pytest.approx(
        numpy.broadcast_to([0.3 * 0.4 + 0.7, 0.3 * 0.4, 0.3 * 0.4], picture[is_changed].shape)
    )


def test_linear_maps_lie_around_grey() -> None:
    colours = linear_map_colours(numpy.array([[[0.0, 2.0, -9.0]]]), scale=2.0)
    assert colours.tolist() == [[[0.5, 1.0, 0.0]]]


@pytest.mark.parametrize("name", PALETTES)
def test_both_arms_of_every_scale_darken_alike(name: str) -> None:
    """CIE L* at equal strengths, for and against, from relative luminance."""
    scale = PALETTES[name].colormap
    for strength in (0.2, 0.4, 0.6, 0.8, 1.0):
        colours = numpy.array([scale(0.5 + 0.5 * strength)[:3], scale(0.5 - 0.5 * strength)[:3]])
        linear = numpy.where(
            colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4
        )
        lightness = 116 * numpy.cbrt(linear @ [0.2126, 0.7152, 0.0722]) - 16
        assert abs(lightness[0] - lightness[1]) < 2
