"""Panels: what they show and say, titles that stay inside the picture, numbers that read well."""

from dataclasses import replace

import numpy
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dmbp.render.colour_test import VOLUME_WORDS, ColourTest, Outcome
from dmbp.render.comparison import ComparedMap, SanityRow, draw_comparison, draw_sanity
from dmbp.render.panel import (
    PanelRow,
    PanelStyle,
    draw_panel,
    format_number,
    outline,
    wrap_sentence,
)


def confirmed_row(caption: str, without_negative: Outcome | None = None) -> PanelRow:
    """A row with red pixels on the left and blue ones on the right; the control is at the top."""
    photo = numpy.full((8, 8, 3), 0.5)
    left, right = numpy.zeros((8, 8)), numpy.zeros((8, 8))
    left[2:6, :3], right[2:6, 5:] = 1, 1
    top = numpy.zeros((8, 8))
    top[0] = 1
    test = ColourTest(
        "cat", Outcome(2.0, 0.88), Outcome(-2.0, 0.12), without_negative, Outcome(1.9, 0.87)
    )
    return PanelRow(
        photo,
        left - right,
        photo,
        photo,
        (1.0, 2.0, -1.0, 0.0),
        caption,
        caption,
        test=test,
        removed={1: left, -1: right, 0: top},
        replaced=numpy.zeros((8, 8, 3)),
    )


def words(figure: Figure) -> list[str]:
    """Return all titles and texts of a figure, each on one line."""
    texts = [text for axis in figure.axes for text in (axis.title, *axis.texts)]
    return [" ".join(text.get_text().split()) for text in texts if text.get_text()]


def pictures(figure: Figure) -> list[NDArray[numpy.float64]]:
    return [axis.images[0].get_array() for axis in figure.axes if axis.images]


def changed_pixels(picture: NDArray[numpy.float64]) -> NDArray[numpy.bool_]:
    """Return which pixels of a photo of mid-grey were changed."""
    return numpy.abs(picture - 0.5).max(-1) > 0.01


def test_four_pictures_and_a_sentence() -> None:
    row = confirmed_row("photo", Outcome(3.0, 0.95))
    figure = draw_panel([row])
    shown = pictures(figure)
    assert len(shown) == 4
    assert "without pixels marked red cat 88% → 12%" in words(figure)
    assert "without pixels marked blue cat 88% → 95%" in words(figure)
    assert (
        "Without the tenth of the photo that is marked strongest in red, cat falls from 88% to 12% "
        "(the same pattern elsewhere: 87%). "
        "Without the tenth marked strongest in blue, it rises to 95%." in words(figure)
    )
    assert row.removed is not None
    assert (changed_pixels(shown[2]) == (row.removed[1] > 0)).all()
    assert (changed_pixels(shown[3]) == (row.removed[-1] > 0)).all()


def strip(row: PanelRow) -> PanelRow:
    """The same row for a photo that is a long line."""
    assert row.removed is not None

    def longer(values: NDArray[numpy.float64]) -> NDArray[numpy.float64]:
        return numpy.concatenate([values] * 4, 1)

    maps = ("photo", "attribution", "positive_map", "negative_map", "replaced")
    removed = {sign: longer(mask) for sign, mask in row.removed.items()}
    return replace(row, removed=removed, **{name: longer(getattr(row, name)) for name in maps})


def test_long_photos_stand_in_two_lines() -> None:
    row = strip(confirmed_row("photo", Outcome(3.0, 0.95)))
    long, square = (
        [axis.get_subplotspec() for axis in draw_panel([k]).axes if axis.images]
        for k in (row, confirmed_row("photo", Outcome(3.0, 0.95)))
    )
    places = [(k.rowspan.start, k.colspan.start, len(k.colspan)) for k in long if k is not None]
    assert places == [(0, 0, 2), (0, 2, 2), (1, 0, 2), (1, 2, 2)]
    places = [(k.rowspan.start, k.colspan.start, len(k.colspan)) for k in square if k is not None]
    assert places == [(0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 3, 1)]
    voxels = replace(row, words=VOLUME_WORDS)
    assert "without voxels marked red cat 88% → 12%" in words(draw_panel([voxels]))


def test_without_blue_the_control_takes_its_place() -> None:
    row = confirmed_row("photo")
    figure = draw_panel([row])
    said = " ".join(words(figure))
    assert "control: the same pattern elsewhere cat 88% → 87%" in words(figure)
    assert "No part was found that speaks against cat." in said
    assert "marked blue" not in said
    assert (
        "tinted: the tenth of the photo that is marked strongest, blurred for the model; green:"
        in said
    )
    assert row.removed is not None
    assert (changed_pixels(pictures(figure)[3]) == (row.removed[0] > 0)).all()


def test_a_map_without_red_shows_only_blue() -> None:
    row = confirmed_row("photo", Outcome(3.0, 0.95))
    assert row.test is not None
    test = replace(row.test, without_positive=None, without_control=None)
    figure = draw_panel([replace(row, test=test)])
    assert len(pictures(figure)) == 3
    assert "without pixels marked blue cat 88% → 95%" in words(figure)
    blank = replace(test, without_negative=None)
    assert len(pictures(draw_panel([replace(row, test=blank)]))) == 2


def test_an_outline_encloses_what_was_changed() -> None:
    """Or there is none: a line around some of the changed pixels would say that these are all."""
    block = numpy.zeros((160, 160))
    block[40:90, 50:100] = 1
    (line,) = outline(block)
    assert line.min(0) == pytest.approx([50, 40], abs=3)
    assert line.max(0) == pytest.approx([100, 90], abs=3)
    dots = numpy.random.default_rng(0).random((160, 160)) > 0.97
    assert len(outline(numpy.maximum(block, dots * (numpy.arange(160) > 150)))) == 1
    assert outline(numpy.maximum(block, dots)) == []
    assert outline(dots.astype(float)) == []
    assert outline(numpy.zeros((160, 160))) == []


def test_the_legend_explains_words_where_they_are_used() -> None:
    row = confirmed_row("photo", Outcome(3.0, 0.95))
    said = " ".join(words(draw_panel([row])))
    assert "tinted: the tenth of the photo that is marked strongest, blurred for the model" in said
    assert "score: the model's output" not in said
    assert "judged independently" not in said
    assert row.test is not None
    few = replace(row, test=replace(row.test, shares=(0.1, 0.03)))
    said = " ".join(words(draw_panel([few])))
    assert "tinted: pixels marked strongest, at most a tenth, blurred for the model" in said
    hardly = confirmed_row("photo", Outcome(2.1, 0.89))
    said = " ".join(words(draw_panel([hardly, hardly], independent=True)))
    assert said.count("score: the model's output before it becomes a percentage") == 1
    assert said.count("classes are judged independently, so percentages need not add up to") == 1
    regression = replace(row, test=ColourTest("weight", Outcome(2.0), Outcome(-2.0), None, None))
    alone = " ".join(words(draw_panel([regression])))
    assert "score: the number that is asked about" in alone
    assert "before it becomes a percentage" not in alone


def test_sentences_begin_on_their_own_lines() -> None:
    assert wrap_sentence("One. Two.", width=1) == "One. Two."
    assert wrap_sentence("One two three. Four.", width=1) == "One two\nthree.\nFour."
    assert wrap_sentence("One from 7 → 8 now.", width=1) == "One from\n7 → 8 now."


def test_the_terms_are_behind_an_option() -> None:
    row = confirmed_row("photo")
    assert not any("patterns" in text or "adds up" in text for text in words(draw_panel([row])))
    said = words(draw_panel([row], PanelStyle(terms=True)))
    assert {"patterns for it, ∇F⁺", "patterns against it, ∇F⁻", "how the score adds up"} <= set(
        said
    )
    untested = words(draw_panel([replace(row, test=None)]))
    assert "how the score adds up" in untested
    assert "the model was not asked about these colours" in untested


LONG = "nothing sure, most likely African bush elephant (13%)\nexplained: adenocarcinoma in situ"


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("caption", ["predicted cat (98%)", LONG, f"{LONG}\n{LONG}"])
def test_titles_are_inside_the_picture(caption: str, rows: int) -> None:
    """And on no picture of the row above."""
    blank = numpy.zeros((8, 8, 3))
    row = PanelRow(blank, blank[..., 0], blank, blank, (1.0, 2.0, -1.0, 0.0), caption, caption)
    tested = confirmed_row(caption)
    compared = ComparedMap("gradient", blank[..., 0], [0.0, 1.0], 0.5, 1.0)
    sanity = SanityRow("gradient", blank[..., 0], blank[..., 0], [0.1])
    for figure in (
        draw_panel([row] * rows),
        draw_panel([tested] * rows),
        draw_panel([tested] * rows, PanelStyle(terms=True)),
        draw_panel([strip(tested)]),
        draw_comparison(blank, caption, [compared] * 5 * rows, "cat"),
        draw_sanity(blank, caption, [sanity] * rows),
    ):
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        places = [axis.get_window_extent() for axis in figure.axes]
        for axis in filter(Axes.get_title, figure.axes):
            title = axis.title.get_window_extent()
            assert title.y1 <= figure.bbox.y1
            above = [p for p in places if p.x0 < title.x1 and title.x0 < p.x1 and p.y0 > title.y0]
            assert all(title.y1 <= place.y0 for place in above)


def test_numbers_as_a_person_writes_them() -> None:
    given = (2386.2, -0.51, -0.0007, 0.0, 99.5)
    assert [format_number(value) for value in given] == [
        "+2,386",
        "-0.51",
        "0.00",
        "0.00",
        "+99.50",
    ]
