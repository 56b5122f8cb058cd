"""Titles above pictures: wrapped where they are as wide as the picture, by the font's own widths.

A title of letters such as W takes twice the room of one of letters such as i, so that counting
letters lets the titles of neighbouring pictures run into each other.
"""

from functools import cache

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

TITLE_WIDTH = 2.9
"""The width of a title in inches: that of a picture of a panel, but for a gap to the next."""

TITLE_SIZE = 11
"""The size of titles, in points."""

TITLE_LINE_HEIGHT = 0.27
"""The height of a line of a title, in inches."""

MOST_LINES = 2
"""The most lines that a line of a title is wrapped into."""

UNBROKEN = {
    " → ": "\u00a0→\u00a0",
    " · ": "\u00a0·\u00a0",
    " − ": " −\u00a0",
    " in box ": " in\u00a0box\u00a0",
}
"""Where no line ends, because a number or a name belongs to what is before or after it."""


def wrap_title(title: str, *, pictures: float = 1) -> str:
    """Wrap each line of a title to a picture's width; if it takes more than two, cut its middle.

    `pictures` is the width of the picture, in those of a panel.
    """
    width = pictures * TITLE_WIDTH
    wrapped: list[str] = []
    for line in title.split("\n"):
        lines = _wrapped(line, width)
        if len(lines) > MOST_LINES:
            lines = [lines[0], _ending(line, width)]
        wrapped += lines
    return "\n".join(wrapped)


def title_height(*titles: str, pictures: float = 1) -> float:
    """Return the inches that titles of more than one line need above a row of pictures."""
    wrapped = (wrap_title(title, pictures=pictures) for title in titles)
    return TITLE_LINE_HEIGHT * max(title.count("\n") for title in wrapped)


def title_width(text: str) -> float:
    """Return the width of a line of a title, in inches."""
    return sum(map(_width_of, text))


@cache
def _width_of(letter: str) -> float:
    # Letter by letter, because the widths of a few hundred letters are soon known.
    font = FontProperties(size=TITLE_SIZE)
    return text_to_path.get_text_width_height_descent(letter, font, ismath=False)[0] / 72


def _wrapped(line: str, width: float) -> list[str]:
    """Wrap a line between words; only a word that is wider than a line is cut."""
    for words, unbroken in UNBROKEN.items():
        line = line.replace(words, unbroken)
    lines = [""]
    for word in line.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if title_width(longer) <= width:
            lines[-1] = longer
            continue
        lines += [word] if lines[-1] else []
        lines[-1] = word
        while title_width(lines[-1]) > width:
            fits = next(k for k in range(len(word), 0, -1) if title_width(lines[-1][:k]) <= width)
            lines[-1:] = [lines[-1][:fits], lines[-1][fits:]]
    return [found.replace("\u00a0", " ") for found in lines]


def _ending(line: str, width: float) -> str:
    """Return as much of a line's end as fits, after an ellipsis."""
    starts = (k for k in range(len(line)) if title_width("…" + line[k:]) <= width)
    return "…" + line[next(starts, len(line)) :].lstrip(" ,;:")
