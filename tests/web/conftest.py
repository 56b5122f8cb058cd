"""One server with the built-in model, and one browser, for all tests of the page."""

import shutil
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy
import pytest
from numpy.typing import NDArray
from PIL import Image

from dmbp.models.voc160 import CLASSES
from dmbp.web.app import PageOptions
from dmbp.workflows.prediction import ModelSpec
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


MARKUP = """"'><img src=x onerror=window.hurt=1><script>window.hurt=1</script>"""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that explains fast rather than well; one of its classes has markup for a name."""
    names = tmp_path_factory.mktemp("classes") / "classes.txt"
    names.write_text("\n".join(MARKUP if k == "train" else k for k in CLASSES))
    settings = {"preset": "fast", "iterations": 2}
    options = PageOptions(ModelSpec(classes=names), settings, waiting=8, seconds=120)
    with running(options) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium.

    Playwright leaves an event loop in this thread, so it has to end with its module.
    """
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

    def picture(self) -> NDArray[numpy.int16]:
        """The canvas' pixels, (height, width, 3)."""
        return pixels(self.tab.evaluate("() => document.querySelector('#picture').toDataURL()"))


def pixels(url: str) -> NDArray[numpy.int16]:
    """The pixels of a data URL, (height, width, 3)."""
    image = Image.open(BytesIO(b64decode(url.partition(",")[2]))).convert("RGB")
    return numpy.asarray(image).astype(numpy.int16)


@pytest.fixture
def visit(browser: Any, server: Running) -> Iterator[Any]:
    """Return a function that opens the page in a new window and waits for the sample."""
    visits: list[Visit] = []

    def open_page(path: str = "", *, shown: str = "cat", **options: Any) -> Visit:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        visit = Visit(context.new_page())
        visits.append(visit)
        tab = visit.tab
        tab.on("console", lambda said: visit.complaints.append(said.text))
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
