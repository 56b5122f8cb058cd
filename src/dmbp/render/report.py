"""The report: an HTML page about all photos, or several, which can be mailed and opened offline.

A page (`templates/report.html`) loads nothing: pictures are inside it as data, and charts are SVG
elements that `line_chart` writes. Its content security policy forbids all requests, and allows no
style and no script but `report.css` and `report.js`, which are inside the page as well, by their
hashes. Markup must therefore have no `style` attributes.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from html import escape
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Self

import numpy
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from dmbp.display import encode_figure
from dmbp.files import write_all_or_none
from dmbp.render.colour import INK, Array, Palette
from dmbp.render.colour_test import (
    INDEPENDENT_CLASSES,
    PHOTO,
    ColourTest,
    InputWords,
    score_meaning,
)
from dmbp.render.comparison import CurveSubject
from dmbp.render.panel import (
    ChangedPhoto,
    PanelRow,
    PanelStyle,
    format_number,
    linear_map_pictures,
    term_bars,
    tint_note,
)
from dmbp.render.series import SeriesRow, draw_charts

WIDTH, HEIGHT = 300, 170
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 8, 34


@dataclass(frozen=True)
class ChartLine:
    """A curve through evenly spaced values, from left to right."""

    name: str
    colour: str
    values: Sequence[float]


def line_chart(
    lines: Sequence[ChartLine], *, across: str, last: str, limits: tuple[float, float] | None = None
) -> str:
    """Return a chart as SVG; `across` names the horizontal axis, `last` labels its right end."""
    low, high = limits or _limits(lines)
    parts = [_axis(low, high, across, last), *(_polyline(line, low, high) for line in lines)]
    names = ", ".join(line.name for line in lines)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(names)}">'
        + "".join(parts)
        + "</svg>"
    )


def _limits(lines: Sequence[ChartLine]) -> tuple[float, float]:
    values = [value for line in lines for value in line.values] or [0.0]
    low, high = min(0.0, *values), max(0.0, *values)
    return (low, high) if high > low else (low, low + 1.0)


def _y(value: float, low: float, high: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)


def _axis(low: float, high: float, across: str, last: str) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    lines = [f'<line x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{bottom}" class="axis"/>']
    ticks = {low, high, 0.0} if low < 0 < high else {low, high}
    for value in sorted(ticks):
        y = _y(value, low, high)
        lines.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" class="grid"/>')
        label = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
        lines.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" class="end">{label}</text>')
    lines.append(f'<text x="{LEFT}" y="{bottom + 14}">0</text>')
    lines.append(f'<text x="{right}" y="{bottom + 14}" class="end">{escape(last)}</text>')
    middle = (LEFT + right) / 2
    lines.append(f'<text x="{middle}" y="{HEIGHT - 4}" class="middle">{escape(across)}</text>')
    return "".join(lines)


def _polyline(line: ChartLine, low: float, high: float) -> str:
    steps = max(len(line.values) - 1, 1)
    points = " ".join(
        f"{LEFT + (WIDTH - LEFT - RIGHT) * k / steps:.1f},{_y(value, low, high):.1f}"
        for k, value in enumerate(line.values)
    )
    return f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="2"/>'


REPORT_NAME = "report.html"

PAGE_BYTES = 16 * 2**20
"""How large a page becomes before another begins: about 20 photos with one target each."""

EXACT = 1e-4
"""Below this relative error, only rounding is left."""

SHOWN_SIDE = 448
"""Small pictures are enlarged by the largest whole factor that keeps them within so many pixels."""


NARROWEST_BAR = 0.25
"""The width of a bar that stands for nothing, in per cent, so that it can be seen."""


@dataclass(frozen=True)
class ReportTarget:
    """A photo's target: what the panel or chart shows, which has to have a test, and two curves.

    `name` says what is explained, `label` the same with probabilities, and `score_words` what the
    score is. `history` holds y⁺, y⁻ and y~ by iteration, `insertion` what `curve` follows as pixels
    are inserted, from none to all.
    """

    row: PanelRow | SeriesRow
    name: str
    label: str
    score_words: str
    curve: CurveSubject
    history: Mapping[str, Sequence[float]]
    insertion: Sequence[float]
    insertion_score: float
    exactness: float
    seconds: float


@dataclass(frozen=True)
class ReportPhoto:
    """A photo and its targets.

    `independent` says that several classes may be present, which the page then explains.
    """

    name: str
    predicted: str
    targets: Sequence[ReportTarget]
    independent: bool = False


@dataclass(frozen=True)
class DrawnPhoto:
    """A photo's section with its pictures encoded, which another process may have made."""

    name: str
    predicted: str
    independent: bool
    tests: Sequence[ColourTest]
    words: InputWords
    values: Mapping[str, object]

    @staticmethod
    def of(photo: ReportPhoto, style: PanelStyle) -> "DrawnPhoto":
        """Draw and encode a photo's pictures."""
        rows = [k.row for k in photo.targets if isinstance(k.row, PanelRow)]
        tested = [row for row in rows if row.test is not None]
        return DrawnPhoto(
            photo.name,
            photo.predicted,
            photo.independent,
            [row.test for row in tested if row.test is not None],
            tested[-1].words if tested else PHOTO,
            _photo(photo, style),
        )


@dataclass(frozen=True)
class ReportHeading:
    """What every page of a report says."""

    model: str
    settings: Mapping[str, object]
    versions: Mapping[str, str]


class ReportWriter:
    """Writes a report into a folder, and keeps no photo once its page is written.

    If all photos fit into `page_bytes`, the report is one page, `REPORT_NAME`. Else pages are
    written as they become full, and `REPORT_NAME` lists the photos of each. Every page has its
    pictures inside. The last page is written when the context ends, also by an exception, so that
    no link leads nowhere.

        with ReportWriter(folder, heading) as report:
            for photo in photos:
                report.add(photo)
    """

    def __init__(
        self,
        folder: Path,
        heading: ReportHeading,
        *,
        style: PanelStyle | None = None,
        page_bytes: int = PAGE_BYTES,
    ) -> None:
        self.folder = folder
        self.page_bytes = page_bytes
        self._maker = _PageMaker(heading, style or PanelStyle())
        self.is_empty = True
        self._contents: list[_ListedPage] = []
        self._page = _Page()

    @property
    def first_page(self) -> Path:
        """The path of the page to open."""
        return self.folder / REPORT_NAME

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._page.sections:
            return
        if self._contents:
            self._write_page(is_last=True)
            self._write(REPORT_NAME, _Page(), contents=self._contents)
        else:
            self._write(REPORT_NAME, self._page)
        self._remove_later_pages()

    def _remove_later_pages(self) -> None:
        """Remove the pages that an earlier, longer report has left in the folder."""
        with suppress(OSError):  # there are no more
            for number in count(len(self._contents) + 1):
                (self.folder / _page_name(number)).unlink()

    def add(self, photo: ReportPhoto | DrawnPhoto) -> None:
        """Add a photo; the page before it is written if the photo does not fit into it."""
        if isinstance(photo, ReportPhoto):
            photo = self._maker.draw(photo)
        section = self._maker.section(photo, number=len(self._page.sections) + 1)
        if self._page.sections and self._page.size + len(section) > self.page_bytes:
            self._write_page(is_last=False)
            section = self._maker.section(photo, number=1)
        self._page.add(photo, section)
        self.is_empty = False

    def _write_page(self, *, is_last: bool) -> None:
        """Write the page as one of several, and begin the next."""
        page, self._page = self._page, _Page()
        number = len(self._contents) + 1
        self._contents.append(_ListedPage(_page_name(number), page.listed))
        self._write(
            _page_name(number),
            page,
            number=number,
            previous=_page_name(number - 1) if number > 1 else None,
            next=None if is_last else _page_name(number + 1),
            all_photos=REPORT_NAME,
        )

    def _write(self, name: str, page: "_Page", **links: object) -> None:
        write_all_or_none({self.folder / name: self._maker.content(page, **links)})


def report_page(
    photo: ReportPhoto,
    heading: ReportHeading,
    *,
    style: PanelStyle | None = None,
    is_part: bool = False,
) -> bytes:
    """Return a page about one photo.

    Args:
        photo: The photo and its targets.
        heading: What the page says about the model.
        style: How the pictures look.
        is_part: Whether the page is part of another, such as a notebook, so that it needs no
            introduction.
    """
    maker, page = _PageMaker(heading, style or PanelStyle()), _Page()
    drawn = maker.draw(photo)
    page.add(drawn, maker.section(drawn, number=1))
    return maker.content(page, is_part=is_part)


FRAME_HEIGHT = 640
"""The height in pixels of a page in a notebook; it scrolls inside."""


def framed(page: str) -> str:
    """Return a page as an element of another page, which keeps its own style and script."""
    return (
        f'<iframe srcdoc="{escape(page)}" sandbox="allow-scripts" title="explanation" '
        f'style="width: 100%; height: {FRAME_HEIGHT}px; border: 0"></iframe>'
    )


class _PageMaker:
    """Makes the HTML of pages."""

    def __init__(self, heading: ReportHeading, style: PanelStyle) -> None:
        self.heading = heading
        self.style = style
        self._environment = Environment(
            loader=PackageLoader("dmbp.render"), autoescape=True, undefined=StrictUndefined
        )

    def draw(self, photo: ReportPhoto) -> DrawnPhoto:
        """Return a photo with its pictures drawn in the pages' style."""
        return DrawnPhoto.of(photo, self.style)

    def section(self, photo: DrawnPhoto, *, number: int) -> bytes:
        """Return a photo's section."""
        template = self._environment.get_template("report_photo.html")
        text = template.render(photo=photo.values, number=number)
        return text.encode(errors="replace")  # names of files need not be UTF-8

    def content(self, page: "_Page", **links: object) -> bytes:
        """Return a page, with `links` to others."""
        style, heading = self.style, self.heading
        stylesheet = self._environment.get_template("report.css").render(palette=style.palette)
        script = self._environment.get_template("report.js").render()
        notes = [tint_note(page.tests, page.words), score_meaning(page.tests)] if page.tests else []
        chunks = self._environment.get_template("report.html").generate(
            {"number": None, "contents": (), "is_part": False} | links,
            policy=_policy(stylesheet, script),
            stylesheet=stylesheet,
            script=script,
            sections=(section.decode() for section in page.sections),
            model=heading.model,
            settings=heading.settings,
            versions=heading.versions,
            palette=style.palette,
            smoothing=style.smoothing,
            notes=[*notes, *[INDEPENDENT_CLASSES] * page.independent],
        )
        return b"".join(chunk.encode(errors="replace") for chunk in chunks)


@dataclass(frozen=True)
class _ListedPhoto:
    name: str
    predicted: str


@dataclass(frozen=True)
class _ListedPage:
    """A page in the list of all photos."""

    name: str
    photos: Sequence[_ListedPhoto]


class _Page:
    """The sections of a page that is not written yet, and what its notes depend on."""

    def __init__(self) -> None:
        self.sections: list[bytes] = []
        self.size = 0
        self.listed: list[_ListedPhoto] = []
        self.tests: list[ColourTest] = []
        self.words = PHOTO
        self.independent = False

    def add(self, photo: DrawnPhoto, section: bytes) -> None:
        self.sections.append(section)
        self.size += len(section)
        self.independent = self.independent or photo.independent
        self.listed.append(_ListedPhoto(photo.name, photo.predicted))
        self.tests += photo.tests
        self.words = photo.words if photo.tests else self.words


def _page_name(number: int) -> str:
    """Return the file name of a page of several."""
    name, ending = REPORT_NAME.split(".")
    return f"{name}-{number}.{ending}"


def _policy(stylesheet: str, script: str) -> str:
    """Return the page's content security policy."""
    return (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src {_source(stylesheet)}; script-src {_source(script)}"
    )


def _source(text: str) -> str:
    """Return how a policy names an element with this text."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _photo(photo: ReportPhoto, style: PanelStyle) -> dict[str, object]:
    row = photo.targets[0].row
    return {
        "name": photo.name,
        "predicted": photo.predicted,
        "input": row.words.whole,
        "picture": _data_url(row.photo) if isinstance(row, PanelRow) else None,
        "caption": row.photo_caption if isinstance(row, PanelRow) else None,
        "targets": [_target(target, style) for target in photo.targets],
    }


def _target(target: ReportTarget, style: PanelStyle) -> dict[str, object]:
    row, palette = target.row, style.palette
    assert row.test is not None
    shown = _pictures(row, style) if isinstance(row, PanelRow) else _chart(row, style)
    return {
        **shown,
        "sentence": row.test.sentence(palette, row.words),
        "name": target.name,
        "label": target.label,
        "score_words": target.score_words,
        "curve": target.curve.title,
        "terms": _terms(row, palette),
        "history": _history(target, palette),
        "insertion": line_chart(
            [ChartLine(target.curve.words, INK, target.insertion)],
            across="pixels put in",
            last="all",
            limits=(0.0, 1.0) if target.curve.in_percent else None,
        ),
        "insertion_score": f"{target.insertion_score:.3f}",
        "exactly": "exactly" if target.exactness < EXACT else "approximately",
        "exactness": f"{target.exactness:.0e}" if target.exactness else "0",
        "seconds": f"{target.seconds:.1f}",
    }


def _pictures(row: PanelRow, style: PanelStyle) -> dict[str, object]:
    """Return the pictures of a photo's target."""
    positive, negative = linear_map_pictures(row)
    return {
        "chart": None,
        "changed": [_changed_photo(photo) for photo in row.changed_photos(style.palette)],
        "region": _polygons(row.region_lines),
        "region_box": _pixel_box(row.photo),
        "views": [
            {"x": view.left, "y": view.top, "label": view.label, "size": LABEL * len(row.photo)}
            for view in row.views
        ],
        "evidence": _data_url(style.evidence_image(row.attribution, row.photo, row.views)),
        "positive": _data_url(positive),
        "negative": _data_url(negative),
    }


LABEL = 0.045
"""The height of the label of a part of a picture, as a share of the picture's."""


def _chart(row: SeriesRow, style: PanelStyle) -> dict[str, object]:
    """Return the chart of a signal's or vector's target; the page itself has the rest."""
    alone = replace(style, terms=False)
    content = encode_figure(draw_charts([row], alone, with_sentences=False), ".png")
    return {"chart": "data:image/png;base64," + b64encode(content).decode()}


def _changed_photo(photo: ChangedPhoto) -> dict[str, object]:
    """Return a changed photo, its title, and the lines around its changed pixels."""
    return {
        "picture": _data_url(photo.picture),
        "title": photo.title,
        "colour": photo.colour,
        "box": _pixel_box(photo.picture),
        "outlines": _polygons(photo.outlines),
    }


def _pixel_box(picture: Array) -> str:
    """Return the view box in which a picture's pixels are squares around whole numbers."""
    height, width = picture.shape[:2]
    return f"-0.5 -0.5 {width} {height}"


def _polygons(lines: Sequence[Array]) -> list[str]:
    """Return lines (points, 2) as the points of SVG polygons."""
    return [" ".join(f"{column:.1f},{row:.1f}" for column, row in points) for points in lines]


def _terms(row: PanelRow | SeriesRow, palette: Palette) -> list[dict[str, object]]:
    assert row.terms is not None
    reach = max(map(abs, row.terms)) or 1.0
    return [
        {
            "name": name,
            "value": format_number(value),
            "colour": colour,
            "width": f"{max(50 * abs(value) / reach, NARROWEST_BAR):.2f}",
            "start": f"{50 - (50 * -value / reach if value < 0 else 0):.2f}",
        }
        for name, value, colour in term_bars(row.terms, palette)
    ]


def _history(target: ReportTarget, palette: Palette) -> str:
    colours = (palette.positive, palette.negative, palette.neutral)
    lines = [
        ChartLine(name, colour, values)
        for (name, values), colour in zip(target.history.items(), colours, strict=True)
    ]
    iterations = len(lines[0].values) - 1  # the first value is that before learning
    return line_chart(lines, across="iterations", last=str(iterations))


def _data_url(picture: Array) -> str:
    """Return a picture in [0, 1] as a JPEG inside a URL."""
    image = Image.fromarray(numpy.round(numpy.clip(picture, 0, 1) * 255).astype(numpy.uint8))
    scale = max(1, SHOWN_SIDE // max(image.size))
    image = image.resize((image.width * scale, image.height * scale), Image.Resampling.BICUBIC)
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=88, subsampling=0)
    return "data:image/jpeg;base64," + b64encode(buffer.getvalue()).decode()
