"""Titles above pictures."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dmbp.render.titles import TITLE_SIZE, TITLE_WIDTH, title_width, wrap_title

LUNG = "adenocarcinoma in situ, well differentiated, left lower lobe of the lung"
WIDE = "MAMMOTHS AND WOMBATS IN WINTER, HAMMOCKS IN MAMMOTH MARMALADE"
SUM = "disc in box 0 − 0.5 · square in box 2"


def drawn_width(text: str) -> float:
    """The width of a text as matplotlib draws it, in inches."""
    figure = Figure(dpi=100)
    canvas = FigureCanvasAgg(figure)
    written = figure.text(0, 0, text, fontsize=TITLE_SIZE)
    return written.get_window_extent(canvas.get_renderer()).width / 100


@pytest.mark.parametrize("name", [LUNG, WIDE, "W" * 90, SUM])
@pytest.mark.parametrize("pictures", [1, 2])
def test_no_line_is_wider_than_its_picture(name: str, pictures: int) -> None:
    lines = wrap_title(f"for and against: {name} (26%)", pictures=pictures).split("\n")
    assert len(lines) <= 2
    assert max(map(drawn_width, lines)) <= 1.01 * pictures * TITLE_WIDTH
    assert lines[0].startswith("for and against:")
    assert lines[-1].endswith("(26%)")


def test_what_fits_stays_as_it_is() -> None:
    assert wrap_title("predicted cat (98%)\nfor it") == "predicted cat (98%)\nfor it"
    assert title_width("cat") == pytest.approx(drawn_width("cat"), rel=0.05)


def test_long_titles_are_cut_in_the_middle() -> None:
    first, last = wrap_title(f"for and against: {LUNG} (26%)").split("\n")
    assert first.startswith("for and against: adenocarcinoma")
    assert last.startswith("…")
    assert last.endswith("lung (26%)")


def test_numbers_stay_with_what_they_belong_to() -> None:
    assert wrap_title(f"for and against: {SUM}") == (
        "for and against: disc in box 0\n− 0.5 · square in box 2"
    )
