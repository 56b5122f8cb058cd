"""Reports about made-up photos."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy

from dmbp.render import (
    REPORT_NAME,
    ColourTest,
    CurveSubject,
    Outcome,
    PanelRow,
    PanelStyle,
    ReportHeading,
    ReportPhoto,
    ReportTarget,
    ReportWriter,
)
from dmbp.render.colour import Array
from dmbp.render.report import PAGE_BYTES


def target(
    name: str, without_negative: Outcome | None = None, removed: Array | None = None
) -> ReportTarget:
    picture = numpy.random.default_rng(0).random((16, 16, 3))
    if removed is None:
        removed = (picture[..., 0] > 0.9).astype(float)
    at_random = Outcome(1.4, 0.79)
    row = PanelRow(
        picture,
        picture[..., 0] - 0.5,
        picture,
        -picture,
        (1.5, 3.0, -1.0, -0.5),
        "photo",
        name,
        test=ColourTest(name, Outcome(1.5, 0.8), Outcome(-1.0, 0.27), without_negative, at_random),
        removed={1: removed, -1: removed, 0: removed},
        replaced=picture[::-1],
    )
    history = {"y⁺": [1.0, 3.0], "y⁻": [0.0, -1.0], "y~": [0.5, -0.5]}
    return ReportTarget(
        row=row,
        name=f"{name} rather than owl",
        label=f"{name} (80.0%) rather than owl (7.0%)",
        score_words=f"{name} minus owl",
        curve=CurveSubject(name),
        history=history,
        insertion=[0.1, 0.5, 0.8],
        insertion_score=0.475,
        exactness=0.0,
        seconds=1.2,
    )


def written(
    photos: Sequence[ReportPhoto],
    style: PanelStyle | None = None,
    *,
    page_bytes: int = PAGE_BYTES,
) -> dict[str, str]:
    """Return the pages of a report by their names."""
    heading = ReportHeading("net", settings={"iterations": 50}, versions={"dmbp": "1"})
    with TemporaryDirectory() as folder:
        with ReportWriter(Path(folder), heading, style=style, page_bytes=page_bytes) as report:
            for photo in photos:
                report.add(photo)
        return {path.name: path.read_text() for path in Path(folder).iterdir()}


def page(style: PanelStyle | None = None, *, independent: bool = False) -> str:
    photos = [
        ReportPhoto(
            "a<b>.jpg", "cat (80%)", [target("cat", Outcome(3.0, 0.95)), target("dog & co")]
        ),
        ReportPhoto("second.jpg", "dog (80%)", [target("dog")], independent=independent),
    ]
    pages = written(photos, style)
    assert list(pages) == [REPORT_NAME]
    return pages[REPORT_NAME]
