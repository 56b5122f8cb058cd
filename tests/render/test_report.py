"""The report: one file that asks for nothing, says everything, and escapes what it is told."""

import gc
import re
import weakref
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import numpy
import pytest

from dmbp.render import (
    PALETTES,
    REPORT_NAME,
    Outcome,
    PanelStyle,
    ReportHeading,
    ReportPhoto,
    ReportWriter,
)
from dmbp.render.report import ChartLine, line_chart
from tests.render.reports import page, target, written


class _Collector(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.policy = ""
        self.texts: dict[str, list[str]] = {"style": [], "script": []}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(name for name, _ in attrs)
        if ("http-equiv", "Content-Security-Policy") in attrs:
            self.policy = dict(attrs)["content"] or ""
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "srcset", "action")]

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] in self.texts:
            self.texts[self.tags[-1]].append(data)


def test_it_asks_for_nothing() -> None:
    collector = _Collector()
    collector.feed(page())
    assert collector.addresses
    assert all(address.startswith("data:image/") for address in collector.addresses)
    assert "http" not in re.sub(r"http-equiv", "", page())
    assert "default-src 'none'" in page()
    assert collector.tags.count("select") == 2
    assert collector.tags.count("input") == 3


def test_the_policy_allows_the_pages_own_style_and_script_only() -> None:
    collector = _Collector()
    collector.feed(page())
    directives = dict(part.strip().split(" ", 1) for part in collector.policy.split(";"))
    assert "unsafe" not in collector.policy
    assert directives["default-src"] == "'none'"
    assert directives["img-src"] == "data:"
    for tag in ("style", "script"):
        assert collector.tags.count(tag) == 1
        text = next(text for text in collector.texts[tag] if text.strip())
        digest = b64encode(sha256(text.encode()).digest()).decode()
        assert directives[f"{tag}-src"] == f"'sha256-{digest}'"
        assert "\r" not in text  # a parser turns it into another character, and changes the hash


def test_nothing_on_the_page_needs_more_than_the_policy_allows() -> None:
    """The policy blocks `style` attributes, event handlers and everything that is loaded."""
    collector = _Collector()
    collector.feed(page())
    assert "style" not in collector.attributes
    assert not [name for name in collector.attributes if name.startswith("on")]
    assert collector.tags.count("rect") == 12  # three targets with four terms each


def test_it_says_everything() -> None:
    text = page()
    for said in ("a&lt;b&gt;.jpg", "dog &amp; co", "cat (80%)", "80.0%", "+3.00", "-1.00", "0.475"):
        assert said in text
    assert "<b>.jpg" not in text


def test_it_says_what_the_model_said() -> None:
    text = page()
    sentence = (
        "marked strongest in red, cat falls from 80% to 27% (the same pattern elsewhere: 79%)."
    )
    assert sentence in text
    assert "<figcaption>without pixels marked blue\ncat 80% → 95%</figcaption>" in text
    assert text.count("<figcaption>without pixels marked red") == 3
    assert "<figcaption>control: the same pattern elsewhere\ndog 80% → 79%</figcaption>" in text
    assert text.count("<figcaption>control: the same pattern elsewhere") == 2
    assert "No part was found that speaks against dog." in text


def test_it_says_what_the_words_mean() -> None:
    assert "<h1>What the model net saw</h1>" in page()
    tinted = (
        "Tinted: the tenth of the photo that is marked strongest, blurred for the model; green: "
    )
    assert tinted in page()
    assert "Score: the model&#39;s output before it becomes a percentage." in page()
    assert "Classes are judged independently" not in page()
    assert "Classes are judged independently" in page(independent=True)
    assert "reproduces the model's own output exactly (relative error 0)" in page()
    assert "pale" not in page()


def test_outlines_lie_over_the_photo() -> None:
    together = numpy.zeros((16, 16))
    together[4:10, 4:10] = 1
    for removed, lines in ((together, 2), (numpy.zeros((16, 16)), 0)):
        photo = ReportPhoto("a.jpg", "cat (80%)", [target("cat", Outcome(3.0, 0.95), removed)])
        text = written([photo])[REPORT_NAME]
        assert text.count("<polygon") == lines
        assert text.count('viewBox="-0.5 -0.5 16 16"') == lines


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


def photo(number: int) -> ReportPhoto:
    return ReportPhoto(f"photo{number}&.jpg", f"class {number} (80%)", [target("cat")])


def test_photos_that_do_not_fit_into_a_page_begin_another() -> None:
    whole = written([photo(0)])[REPORT_NAME]
    section = len(whole[whole.index("<section") : whole.rindex("</section>")].encode())
    pages = written([photo(k) for k in range(5)], page_bytes=int(2.5 * section))
    assert sorted(pages) == ["report-1.html", "report-2.html", "report-3.html", REPORT_NAME]
    shown = {name: re.findall(r"<h2>photo(\d)&amp;.jpg</h2>", text) for name, text in pages.items()}
    assert shown == {
        "report-1.html": ["0", "1"],
        "report-2.html": ["2", "3"],
        "report-3.html": ["4"],
        REPORT_NAME: [],
    }
    assert max(len(text) for text in pages.values()) < len(whole) + 2 * section


class _Balance(HTMLParser):
    """Fails if an element is closed that is not open; `open` holds those that are."""

    VOID = ("meta", "img", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_every_element_is_closed() -> None:
    for text in (page(), *written([photo(0), photo(1)], page_bytes=1).values()):
        assert text.startswith('<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">')
        balance = _Balance()
        balance.feed(text)
        assert balance.open == []


def test_every_page_is_complete_and_every_link_leads_somewhere() -> None:
    pages = written([photo(k) for k in range(3)], page_bytes=1)
    assert len(pages) == 4  # a photo that is larger than a page still has one
    for number in (1, 2, 3):
        text = pages[f"report-{number}.html"]
        assert "Score: the model&#39;s output" in text
        assert "<td>iterations</td><td>50</td>" in text
        assert ('<a href="report-2.html">next page</a>' in text) == (number == 1)
        assert ('<a href="report-2.html">previous page</a>' in text) == (number == 3)
        assert '<a href="report.html">all photos</a>' in text
    assert (
        '<a href="report-3.html#photo-1">photo2&amp;.jpg</a>: class 2 (80%)' in pages["report.html"]
    )
    for text in pages.values():
        collector = _Collector()
        collector.feed(text)
        for address in collector.addresses:
            name, _, anchor = address.partition("#")
            assert address.startswith("data:image/") or name in pages
            assert not anchor or f'id="{anchor}"' in pages[name]


def test_pages_of_an_earlier_longer_report_are_removed(tmp_path: Path) -> None:
    heading = ReportHeading("net", settings={}, versions={})
    for count, names in (
        (3, ["report-1.html", "report-2.html", "report-3.html", REPORT_NAME]),
        (2, ["report-1.html", "report-2.html", REPORT_NAME]),
        (1, [REPORT_NAME]),
    ):
        with ReportWriter(tmp_path, heading, page_bytes=1) as report:
            for number in range(count):
                report.add(photo(number))
        assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_an_exception_leaves_no_link_to_a_page_that_is_not_there(tmp_path: Path) -> None:
    heading = ReportHeading("net", settings={}, versions={})

    def add_until_interrupted() -> None:
        with ReportWriter(tmp_path, heading, page_bytes=1) as report:
            report.add(photo(0))
            report.add(photo(1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        add_until_interrupted()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["report-1.html", "report-2.html", REPORT_NAME]
    assert "next page" not in (tmp_path / "report-2.html").read_text()


def test_without_photos_there_is_no_page(tmp_path: Path) -> None:
    with ReportWriter(tmp_path, ReportHeading("net", settings={}, versions={})) as report:
        assert report.is_empty
    assert not list(tmp_path.iterdir())


def test_photos_are_not_kept(tmp_path: Path) -> None:
    """Their pictures are megabytes as arrays, and a folder may hold thousands."""
    with ReportWriter(tmp_path, ReportHeading("net", settings={}, versions={})) as report:
        added = photo(0)
        gone = [weakref.ref(added), weakref.ref(added.targets[0].row.photo)]
        report.add(added)
        del added
        gc.collect()
        assert [reference() for reference in gone] == [None, None]


def test_a_chart_by_hand() -> None:
    svg = line_chart(
        [ChartLine("p", "#000", [0.0, 1.0])], across="pixels", last="all", limits=(0.0, 1.0)
    )
    assert 'points="52.0,136.0 292.0,8.0"' in svg
    assert line_chart([ChartLine("flat", "#000", [])], across="a", last="0").startswith("<svg")
