"""The page that `dmbp serve` opens, with its worked sample.

python docs/figures/page.py

Needs Playwright and a Chromium on the path, as the tests of the page do.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent.parent / "images"
SIZE = {"width": 1180, "height": 1010}
WAIT = 120_000
"""Milliseconds in which the sample has to be explained."""


def draw() -> None:
    command = [sys.executable, "-u", "-m", "dmbp", "serve", "--port", "0"]
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = next(filter(None, (re.search(r"http://\S+", k) for k in server.stdout or ())))
            with sync_playwright() as started:
                chromium = started.chromium.launch(executable_path=browser, args=["--no-sandbox"])
                tab = chromium.new_page(viewport=SIZE)  # pyright: ignore
                tab.goto(address.group())
                tab.wait_for_selector("body[data-shown]", timeout=WAIT)
                tab.wait_for_selector("#status[hidden]", state="attached", timeout=WAIT)
                tab.screenshot(path=IMAGES / "page.png")
                chromium.close()
        finally:
            server.terminate()


if __name__ == "__main__":
    draw()
