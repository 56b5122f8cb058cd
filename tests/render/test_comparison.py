"""Comparisons of methods in pictures: scales, captions and verdicts."""

import numpy
import pytest

from dmbp.render.comparison import (
    ComparedMap,
    CurveSubject,
    InsertedPhoto,
    SanityRow,
    draw_comparison,
    draw_insertion,
    shift_to_zero,
)


def test_maps_without_negatives_are_drawn_from_their_weakest_place() -> None:
    assert shift_to_zero(numpy.array([2.0, 5.0])).tolist() == [0.0, 3.0]
    assert shift_to_zero(numpy.array([-2.0, 5.0])).tolist() == [-2.0, 5.0]


@pytest.mark.parametrize(
    ("correlations", "words"),
    [
        ([0.05], "changes:"),
        ([0.2, -0.3], "changes:"),
        ([0.9, -0.4], "in part"),
        ([1.0, -1.0, -1.0], "stays:"),  # its opposite is the same map
        ([0.9, 0.0], "in part"),
        ([0.98, 0.8], "stays:"),
    ],
)
def test_the_correlation_in_words(correlations: list[float], words: str) -> None:
    something = numpy.eye(2)
    assert words in SanityRow("", something, something, correlations).verdict
    nothing = numpy.zeros((2, 2))
    assert "nothing to compare" in SanityRow("", something, nothing, correlations).verdict


def test_a_blank_map_is_called_that() -> None:
    """Its score is that of pixels in the order they lie in."""
    blank, other = numpy.zeros((4, 4)), numpy.eye(4)
    maps = [ComparedMap(n, m, [0.0, 1.0], 0.5, 0.1) for n, m in (("a", blank), ("b", other))]
    figure = draw_comparison(numpy.zeros((4, 4, 3)), "a photo", maps, "cat (98%)")
    titles = [axis.get_title() for axis in figure.axes]
    assert "a\nblank, row by row 0.50 · 0.1 s" in titles
    assert "b\ninsertion 0.50 · 0.1 s" in titles


def test_the_control_and_the_score_are_called_what_they_are() -> None:
    some = numpy.eye(4)
    maps = [
        ComparedMap("DMBP", some, [0.0, 1.0], 0.5, 0.1),
        ComparedMap("Random order", some, [0.0, 1.0], 0.4, 0.1, is_control=True),
    ]
    figure = draw_comparison(numpy.zeros((4, 4, 3)), "a photo", maps, "cat (98%)")
    titles = [axis.get_title() for axis in figure.axes]
    assert "Random order (control)\ninsertion 0.40 · 0.1 s" in titles
    heading = " ".join(figure.get_suptitle().split())
    assert heading.startswith("for and against: cat (98%) insertion: how soon the class returns")
    photos = {0.1: InsertedPhoto(numpy.zeros((4, 4, 3)), 0.034)}
    photos[0.5] = InsertedPhoto(numpy.zeros((4, 4, 3)), 0.97)
    figure = draw_insertion({"DMBP": photos, "Random order": photos}, maps, CurveSubject("cat"))
    below = [axis.get_xlabel() for axis in figure.axes]
    assert below[:4] == ["cat 3%", "cat 97%", "cat 3%", "cat 97%"]
    assert "1 is best" in figure.get_suptitle()
    assert {axis.get_ylabel() for axis in figure.axes} >= {"DMBP", "Random order\n(control)"}
