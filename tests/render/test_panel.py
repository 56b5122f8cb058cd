"""Panels: titles stay inside the picture, numbers read well."""

import numpy
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

from dmbp.render.comparison import ComparedMap, SanityRow, draw_comparison, draw_sanity
from dmbp.render.panel import TITLE_WIDTH, PanelRow, draw_panel, format_number, wrap_title


def test_long_titles_are_cut_in_the_middle() -> None:
    assert wrap_title("predicted cat (98%)\nfor it") == "predicted cat (98%)\nfor it"
    name = "adenocarcinoma in situ, well differentiated, left lower lobe of the lung"
    lines = wrap_title(f"for and against: {name} (26%)").split("\n")
    assert len(lines) == 2
    assert max(map(len, lines)) <= TITLE_WIDTH
    assert lines[0].startswith("for and against: adenocarcinoma")
    assert lines[1].startswith("…")
    assert lines[1].endswith("lung (26%)")


LONG = "nothing sure, most likely African bush elephant (13%)\nexplained: adenocarcinoma in situ"


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("caption", ["predicted cat (98%)", LONG, f"{LONG}\n{LONG}"])
def test_titles_are_inside_the_picture(caption: str, rows: int) -> None:
    """And on no picture of the row above."""
    blank = numpy.zeros((8, 8, 3))
    row = PanelRow(blank, blank[..., 0], blank, blank, (1.0, 2.0, -1.0, 0.0), caption, caption)
    compared = ComparedMap("gradient", blank[..., 0], [0.0, 1.0], 0.5, 1.0)
    sanity = SanityRow("gradient", blank[..., 0], blank[..., 0], [0.1])
    for figure in (
        draw_panel([row] * rows),
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
