"""The report: one file that asks for nothing, says everything, and escapes what it is told."""

import re
from html.parser import HTMLParser

import numpy

from dmbp.render import (
    PALETTES,
    ColourTest,
    Outcome,
    PanelRow,
    PanelStyle,
    ReportPhoto,
    ReportTarget,
    report_html,
)
from dmbp.render.report import ChartLine, line_chart


def target(name: str, without_negative: Outcome | None = None) -> ReportTarget:
    picture = numpy.random.default_rng(0).random((16, 16, 3))
    removed = (picture[..., 0] > 0.9).astype(float)
    row = PanelRow(
        picture,
        picture[..., 0] - 0.5,
        picture,
        -picture,
        (1.5, 3.0, -1.0, -0.5),
        "photo",
        name,
        test=ColourTest(name, Outcome(1.5, 0.8), Outcome(-1.0, 0.27), without_negative),
        removed=(removed, removed),
        replaced=picture[::-1],
    )
    history = {"y⁺": [1.0, 3.0], "y⁻": [0.0, -1.0], "y~": [0.5, -0.5]}
    return ReportTarget(
        row=row,
        name=f"{name} rather than owl",
        label=f"{name} (80.0%) rather than owl (7.0%)",
        score_words=f"{name} minus owl",
        class_name=name,
        history=history,
        insertion=[0.1, 0.5, 0.8],
        insertion_score=0.475,
        exactness=0.0,
        seconds=1.2,
    )


def page(style: PanelStyle | None = None) -> str:
    photos = [
        ReportPhoto(
            "a<b>.jpg", "cat (80%)", [target("cat", Outcome(3.0, 0.95)), target("dog & co")]
        ),
        ReportPhoto("second.jpg", "dog (80%)", [target("dog")]),
    ]
    settings = {"iterations": 50}
    return report_html(
        photos, model="net", settings=settings, versions={"dmbp": "1"}, style=style
    ).decode()


class _Collector(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "srcset", "action")]


def test_it_asks_for_nothing() -> None:
    collector = _Collector()
    collector.feed(page())
    assert collector.addresses
    assert all(address.startswith("data:image/") for address in collector.addresses)
    assert "http" not in re.sub(r"http-equiv", "", page())
    assert "default-src 'none'" in page()
    assert collector.tags.count("select") == 2
    assert collector.tags.count("input") == 3


def test_it_says_everything() -> None:
    text = page()
    for said in ("a&lt;b&gt;.jpg", "dog &amp; co", "cat (80%)", "80.0%", "+3.00", "-1.00", "0.475"):
        assert said in text
    assert "<b>.jpg" not in text


def test_it_says_what_the_model_said() -> None:
    text = page()
    assert "Without the red pixels, cat falls from 80% to 27%; without the blue ones," in text
    assert "<figcaption>without blue: cat 80% → 95%</figcaption>" in text
    assert text.count("<figcaption>without red:") == 3
    assert (
        '<div class="absent">Nothing is blue: no part of the photo speaks against dog.</div>'
        in text
    )
    assert (
        "falls from 80% to 27%. Nothing is blue: no part of the photo speaks against dog." in text
    )


def test_terms_and_patterns_are_folded_away() -> None:
    terms = page().index("How the score of")
    assert page().rindex("<details>", 0, terms) > page().rindex("Insertion score", 0, terms)


def test_it_says_what_is_explained_and_whose_probability_is_drawn() -> None:
    text = page()
    assert '<option value="0">cat (80.0%) rather than owl (7.0%)</option>' in text
    assert "How the score of “cat rather than owl” adds up" in text
    assert "The score is cat minus owl;" in text
    assert "Probability of “cat” as the map's strongest pixels" in text


def test_the_palettes_words_follow_its_colours() -> None:
    text = page(PanelStyle(palette=PALETTES["purple-orange"]))
    assert "purple speaks for" in text
    assert "orange against" in text


def test_a_chart_by_hand() -> None:
    svg = line_chart(
        [ChartLine("p", "#000", [0.0, 1.0])], across="pixels", last="all", limits=(0.0, 1.0)
    )
    assert 'points="52.0,136.0 292.0,8.0"' in svg
    assert line_chart([ChartLine("flat", "#000", [])], across="a", last="0").startswith("<svg")
