"""Panels: what they show and say, titles that stay inside the picture, numbers that read well."""

from dataclasses import replace

import numpy
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dmbp.render.colour_test import ColourTest, Outcome
from dmbp.render.comparison import ComparedMap, SanityRow, draw_comparison, draw_sanity
from dmbp.render.panel import (
    TITLE_WIDTH,
    PanelRow,
    PanelStyle,
    draw_panel,
    format_number,
    wrap_title,
)


def test_long_titles_are_cut_in_the_middle() -> None:
    assert wrap_title("predicted cat (98%)\nfor it") == "predicted cat (98%)\nfor it"
    name = "adenocarcinoma in situ, well differentiated, left lower lobe of the lung"
    lines = wrap_title(f"for and against: {name} (26%)").split("\n")
    assert len(lines) == 2
    assert max(map(len, lines)) <= TITLE_WIDTH
    assert lines[0].startswith("for and against: adenocarcinoma")
    assert lines[1].startswith("…")
    assert lines[1].endswith("lung (26%)")


def confirmed_row(caption: str, without_negative: Outcome | None = None) -> PanelRow:
    """A row with a red pixel on the left and a blue one on the right."""
    photo = numpy.full((8, 8, 3), 0.5)
    left, right = numpy.zeros((8, 8)), numpy.zeros((8, 8))
    left[2:6, :3], right[2:6, 5:] = 1, 1
    test = ColourTest("cat", Outcome(2.0, 0.88), Outcome(-2.0, 0.12), without_negative)
    return PanelRow(
        photo,
        left - right,
        photo,
        photo,
        (1.0, 2.0, -1.0, 0.0),
        caption,
        caption,
        test=test,
        removed=(left, right),
        replaced=numpy.zeros((8, 8, 3)),
    )


def words(figure: Figure) -> list[str]:
    """Return all titles and texts of a figure, each on one line."""
    texts = [text for axis in figure.axes for text in (axis.title, *axis.texts)]
    return [" ".join(text.get_text().split()) for text in texts if text.get_text()]


def test_four_pictures_and_a_sentence() -> None:
    figure = draw_panel([confirmed_row("photo", Outcome(3.0, 0.95))])
    shown = [axis.images[0].get_array() for axis in figure.axes if axis.images]
    assert len(shown) == 4
    assert "without red: cat 88% → 12%" in words(figure)
    assert "without blue: cat 88% → 95%" in words(figure)
    assert (
        "Without the red pixels, cat falls from 88% to 12%; without the blue ones, it rises to 95%."
        in words(figure)
    )
    without_red, without_blue = (numpy.abs(picture - 0.5).max(-1) > 0.01 for picture in shown[2:])
    assert without_red[3, 1]
    assert not without_red[3, 6]
    assert without_blue[3, 6]
    assert not without_blue[3, 1]


def test_no_blue_is_said_in_its_place() -> None:
    figure = draw_panel([confirmed_row("photo")])
    assert "Nothing is blue: no part of the photo speaks against cat" in words(figure)
    assert not any(text.startswith("without blue") for text in words(figure))


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
        draw_comparison(blank, caption, [compared] * 5 * rows),
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
