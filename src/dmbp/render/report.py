"""One HTML page about many photos: self-contained, to be mailed and opened without a network.

The page forbids itself every request (its content security policy allows inline data alone).
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO

import numpy
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from dmbp.render.chart import Line, line_chart
from dmbp.render.colour import Array, Palette
from dmbp.render.panel import PanelRow, PanelStyle, bars, linear_map_pictures, number

SHOWN_SIDE = 448
"""Pixels a picture has in the page; maps are finer than a screen's pixels otherwise."""


@dataclass(frozen=True)
class ReportTarget:
    """One question about a photo: what the panel shows, and two curves.

    `history` holds y⁺, y⁻ and y~ by iteration; `insertion` the target's probability as pixels are
    put in, from none to all.
    """

    row: PanelRow
    name: str
    probability: float
    history: Mapping[str, Sequence[float]]
    insertion: Sequence[float]
    insertion_score: float
    exactness: float
    seconds: float


@dataclass(frozen=True)
class ReportPhoto:
    """One photo with all that was asked about it."""

    name: str
    predicted: str
    targets: Sequence[ReportTarget]


def report_html(
    photos: Sequence[ReportPhoto],
    *,
    model: str,
    settings: Mapping[str, object],
    versions: Mapping[str, str],
    style: PanelStyle | None = None,
) -> bytes:
    """The page as a file's content."""
    style = style or PanelStyle()
    environment = Environment(
        loader=PackageLoader("dmbp.render"), autoescape=True, undefined=StrictUndefined
    )
    page = environment.get_template("report.html").render(
        photos=[_photo(photo, style) for photo in photos],
        model=model,
        settings=settings,
        versions=versions,
        palette=style.palette,
        smoothing=style.smoothing,
    )
    return page.encode()


def _photo(photo: ReportPhoto, style: PanelStyle) -> dict[str, object]:
    maps, scale = style.smoothed([target.row.attribution for target in photo.targets])
    return {
        "name": photo.name,
        "predicted": photo.predicted,
        "picture": _data_url(photo.targets[0].row.photo),
        "targets": [
            _target(target, attribution, scale, style)
            for target, attribution in zip(photo.targets, maps, strict=True)
        ],
    }


def _target(
    target: ReportTarget, attribution: Array, scale: float, style: PanelStyle
) -> dict[str, object]:
    row, palette = target.row, style.palette
    positive, negative = linear_map_pictures(row)
    return {
        "name": target.name,
        "probability": f"{target.probability:.1%}",
        "evidence": _data_url(style.evidence(attribution, row.photo, scale)),
        "positive": _data_url(positive),
        "negative": _data_url(negative),
        "terms": _terms(row, palette),
        "history": _history(target, palette),
        "insertion": line_chart(
            [Line("probability", "#222222", target.insertion)],
            across="pixels put in",
            last="all",
            limits=(0.0, 1.0),
        ),
        "insertion_score": f"{target.insertion_score:.3f}",
        "exactness": f"{target.exactness:.1e}" if target.exactness else "0",
        "seconds": f"{target.seconds:.1f}",
    }


def _terms(row: PanelRow, palette: Palette) -> list[dict[str, object]]:
    assert row.terms is not None
    reach = max(map(abs, row.terms)) or 1.0
    return [
        {
            "name": name,
            "value": number(value),
            "colour": colour,
            "width": f"{50 * abs(value) / reach:.2f}",
            "start": f"{50 - (50 * -value / reach if value < 0 else 0):.2f}",
        }
        for name, value, colour in bars(row.terms, palette)
    ]


def _history(target: ReportTarget, palette: Palette) -> str:
    colours = (palette.positive, palette.negative, palette.neither)
    lines = [
        Line(name, colour, values)
        for (name, values), colour in zip(target.history.items(), colours, strict=True)
    ]
    iterations = len(lines[0].values) - 1  # the first values are those before any
    return line_chart(lines, across="iterations", last=str(iterations))


def _data_url(picture: Array) -> str:
    """A picture in [0, 1] as a JPEG inside the page."""
    image = Image.fromarray(numpy.round(numpy.clip(picture, 0, 1) * 255).astype(numpy.uint8))
    scale = max(1, SHOWN_SIDE // max(image.size))
    image = image.resize((image.width * scale, image.height * scale), Image.Resampling.BICUBIC)
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=88, subsampling=0)
    return "data:image/jpeg;base64," + b64encode(buffer.getvalue()).decode()
