"""One server with the built-in model, and one browser, for all tests of the page."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from dmbp.web.app import PageOptions
from tests.web.serving import Running, running

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """A server that explains fast rather than well."""
    settings = {"preset": "fast", "iterations": 2}
    with running(PageOptions(settings=settings, waiting=8, seconds=120)) as server:
        yield server


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs pip install playwright")
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield browser
        browser.close()


@dataclass
class Visit:
    """A tab with the page, and what must not happen in it."""

    tab: Any
    complaints: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def wait_until_shown(self, name: str) -> None:
        """Wait until a class is explained and nothing is computed any longer."""
        self.tab.wait_for_selector(f'body[data-shown$=" {name}"]', timeout=60_000)
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        self.tab.wait_for_selector("#status[hidden]", state="attached", timeout=60_000)

    def text(self, selector: str) -> str:
        return self.tab.inner_text(selector)

    def picture(self) -> list[int]:
        """The canvas' pixels."""
        return self.tab.evaluate(
            "() => { const c = document.querySelector('#picture');"
            " return [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]; }"
        )


@pytest.fixture
def visit(browser: Any, server: Running) -> Iterator[Any]:
    """Return a function that opens the page in a new window and waits for the sample."""
    visits: list[Visit] = []

    def open_page(path: str = "", *, shown: str = "cat", **options: Any) -> Visit:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        visit = Visit(context.new_page())
        visits.append(visit)
        tab = visit.tab
        tab.on(
            "console", lambda m: m.type in ("error", "warning") and visit.complaints.append(m.text)
        )
        tab.on("pageerror", lambda error: visit.complaints.append(str(error)))

        def note(request: Any) -> None:
            if not request.url.startswith((server.address, "data:", f"blob:{server.address}")):
                visit.foreign.append(request.url)

        tab.on("request", note)
        tab.goto(server.address + path)
        visit.wait_until_shown(shown)
        return visit

    yield open_page
    for visit in visits:
        visit.tab.context.close()
        assert visit.complaints == []
        assert visit.foreign == []
