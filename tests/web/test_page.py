"""The page in a real browser, with the built-in model."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dmbp.web.answers import FIRST_METHODS
from tests.render.reports import page as report_page
from tests.web.conftest import MARKUP, pixels
from tests.web.serving import photo

HARMLESS = ("minor", "moderate")
"""The impacts of axe's findings that are no obstacle."""


def set_slider(tab: Any, selector: str, value: int) -> None:
    tab.locator(selector).fill(str(value))


def file(name: str, content: bytes) -> dict[str, Any]:
    return {"name": name, "mimeType": "image/png", "buffer": content}


def choose_mode(tab: Any, mode: str) -> None:
    tab.check(f"[name=mode][value={mode}]", force=True)


def test_a_sample_is_explained_on_opening(visit: Any) -> None:
    page = visit()
    assert "For and against: cat (98%)" in page.text("#picture-title")
    assert page.tab.locator("#strip button").count() == 4
    assert page.text("#top li:first-child").startswith("cat")
    assert page.tab.locator("#top li").count() == 5
    assert "Without the tenth of the photo that is marked strongest in red" in page.text(
        "#sentence"
    )
    assert page.tab.locator("#changed figure").count() == 2
    assert page.tab.locator("#curve polyline").count() == 1
    assert "insertion score" in page.text("#curve").lower()


def test_the_picture_follows_slider_colours_and_threshold(visit: Any) -> None:
    page = visit()
    tab = page.tab
    evidence = page.picture()
    leaning = evidence[..., 0] - evidence[..., 2]
    reddish, bluish = leaning > 60, leaning < -60
    assert reddish.any()
    assert bluish.any()
    tab.uncheck("#red")
    without_red = page.picture()
    assert (abs(without_red[..., 0] - without_red[..., 2])[reddish] <= 5).all()
    assert (without_red == evidence)[bluish].all()
    tab.check("#red")
    tab.uncheck("#blue")
    without_blue = page.picture()
    assert (abs(without_blue[..., 0] - without_blue[..., 2])[bluish] <= 5).all()
    tab.check("#blue")
    assert (page.picture() == evidence).all()
    set_slider(tab, "#threshold", 90)
    strongest = page.picture()
    kept = (strongest[..., 0] - strongest[..., 2] > 60) & reddish
    assert 0 < kept.sum() < reddish.sum() / 2
    set_slider(tab, "#threshold", 0)
    set_slider(tab, "#mix", 0)
    original = page.picture()
    choose_mode(tab, "film")
    assert (page.picture() == original).all()  # all pixels are filled in
    set_slider(tab, "#scrub", 0)
    assert (page.picture() != original).any()
    assert page.text("#frame").startswith("0% filled: ")
    assert tab.locator("#curve .mark").count() == 1


def test_an_upload_a_class_and_rather_than(visit: Any) -> None:
    page = visit()
    tab = page.tab
    name = "<img src=x onerror=alert(1)>.png"
    tab.set_input_files("#choose", file(name, photo((10, 140, 60))))
    tab.wait_for_selector("#strip li:nth-child(5) [aria-pressed=true]")
    page.wait_until_idle()
    assert page.text("#strip li:nth-child(5) span") == name
    assert name in page.text("#verdict")
    assert "96 × 96" in page.text("#verdict")
    second = page.text("#top li:nth-child(2) button span:first-child")
    tab.click("#top li:nth-child(2) button")
    page.wait_until_shown(second)
    assert tab.get_attribute("#top li:nth-child(2) button", "aria-pressed") == "true"
    tab.fill("#target", "cat")
    tab.fill("#other", "rivals")
    tab.press("#other", "Enter")
    page.wait_until_shown("cat rather than rivals")
    assert "rather than rivals" in page.text("#picture-title")
    tab.fill("#other", "no such class")
    tab.press("#other", "Enter")
    tab.wait_for_selector("#error:not([hidden])")
    assert "no such class" in page.text("#error")
    # The link opens the same explanation in another window.
    other = visit(tab.evaluate("() => location.hash"), shown="cat rather than rivals")
    assert other.text("#picture-title") == page.text("#picture-title")


def test_what_is_no_photo_is_refused_in_words(visit: Any) -> None:
    page = visit()
    wrong = file("x.png", b"%PDF-1.7 not a photo")
    page.tab.set_input_files("#choose", wrong)
    page.tab.wait_for_selector("#error:not([hidden])")
    assert "its content is not JPEG, PNG or WEBP" in page.text("#error")
    assert page.text("#picture-title").startswith("For and against: cat")
    # The others are opened, and the first of them is explained.
    page.tab.set_input_files(
        "#choose", [file("5.png", photo()), wrong, file("6.png", photo((1, 2, 3)))]
    )
    page.tab.wait_for_selector("#strip li:nth-child(5) [aria-pressed=true]")
    page.tab.wait_for_selector("#error:not([hidden])")
    assert page.text("#error").startswith("x.png")
    assert page.tab.locator("#strip li").count() == 6
    assert "“5.png”" in page.text("#verdict")
    assert [said[:23] for said in page.complaints] == ["Failed to load resource"] * 2  # status 422
    page.complaints.clear()


def test_a_dropped_and_a_pasted_photo_are_opened(visit: Any) -> None:
    page = visit()
    for number, kind in enumerate(("drop", "paste"), 5):
        page.tab.evaluate(
            """async ([kind, values]) => {
                const transfer = new DataTransfer(), options = { bubbles: true, cancelable: true };
                const type = "image/png", bytes = new Uint8Array(values);
                transfer.items.add(new File([bytes], kind + ".png", { type }));
                document.body.dispatchEvent(kind === "paste"
                    ? new ClipboardEvent("paste", { clipboardData: transfer, ...options })
                    : new DragEvent("drop", { dataTransfer: transfer, ...options }));
            }""",
            [kind, list(photo((90, 20 * number, 30)))],
        )
        page.tab.wait_for_selector(f"#strip li:nth-child({number}) [aria-pressed=true]")
        page.wait_until_idle()
        assert page.text(f"#strip li:nth-child({number}) span") == f"{kind}.png"


def test_a_painted_region_is_asked_about(visit: Any) -> None:
    page = visit()
    tab = page.tab
    choose_mode(tab, "paint")
    assert tab.is_disabled("#ask")
    tab.locator("#picture").scroll_into_view_if_needed()
    box = tab.locator("#picture").bounding_box()
    set_slider(tab, "#brush", 30)
    tab.mouse.move(box["x"] + 0.15 * box["width"], box["y"] + 0.3 * box["height"])
    assert re.match(r"The circle [a-z ]+ for cat: \+\d", page.text("#readout"))
    assert re.search(r"pixel 2\d, 4\d: ", page.text("#readout"))
    assert tab.is_visible("#circle")
    tab.mouse.down()
    tab.mouse.move(box["x"] + 0.35 * box["width"], box["y"] + 0.7 * box["height"], steps=6)
    tab.mouse.up()
    share = int(re.findall(r"(\d+)% painted", page.text("#painted"))[0])
    assert 10 < share < 50
    tab.click("#ask")
    tab.wait_for_selector("#region:has-text('The same pattern elsewhere')")
    said = page.text("#region")
    before, after = (float(k) for k in re.findall(r"([\d.]+)% \(score", said)[:2])
    assert before > 97
    assert after < before - 5
    tab.click("#clear")
    assert page.text("#painted") == "nothing painted"


def test_methods_appear_as_they_are_done_and_can_be_stopped(visit: Any) -> None:
    page = visit()
    tab = page.tab
    tab.click("#tab-methods")
    assert tab.locator("#methods-first > li").count() == len(FIRST_METHODS)
    assert not tab.is_visible("[data-method=rise]")
    tab.click("[data-method=gradient] button")
    tab.click("#more-methods summary")
    assert re.search(r"takes about \d+\s(s|min)", page.text("[data-method=rise]"))
    tab.click("[data-method=rise] button")
    tab.wait_for_selector("[data-method=gradient] img")
    assert re.search(r"insertion 0\.\d{3}, \d+\.\d\d\ss", page.text("[data-method=gradient]"))
    tab.wait_for_selector("[data-method=rise] p:has-text('running')")
    tab.click("#stop-all")
    tab.wait_for_selector("[data-method=rise] p:has-text('stopped')")
    tab.click("[data-method=random] button")  # the process is free again
    tab.wait_for_selector("[data-method=random] img", timeout=20_000)
    assert tab.is_hidden("#stop-all")
    assert tab.is_visible("#run-first")
    tab.evaluate(
        """() => document.querySelectorAll("#methods-first li:not([data-method=deeplift]) .blank")
            .forEach(blank => blank.replaceWith(document.createElement("img")))"""
    )
    tab.click("#run-first")  # runs what has no picture yet
    tab.wait_for_selector("[data-method=deeplift] img", timeout=20_000)
    assert tab.is_hidden("#run-first")


def test_a_cancelled_sanity_check_frees_the_process_for_the_next(visit: Any) -> None:
    page = visit()
    page.tab.click("#sanity")
    page.tab.wait_for_selector("#doing:has-text('last layer')")
    page.tab.click("#cancel")
    page.wait_until_idle()
    assert page.tab.is_hidden("#error")
    page.tab.click("#top li:nth-child(2) button")
    page.wait_until_shown("person")
    page.tab.click("#sanity")
    page.tab.wait_for_selector("#sanity-result img", timeout=60_000)
    assert "Rank correlation" in page.text("#sanity-result")


def test_what_was_cancelled_is_not_shown_as_if_it_were_explained(visit: Any) -> None:
    page = visit()
    cancel = """async button => {
        document.querySelector(button).click();
        while (document.querySelector("#status").hidden) await new Promise(requestAnimationFrame);
        document.querySelector("#cancel").click();
    }"""
    page.tab.evaluate(cancel, "#top li:nth-child(4) button")
    page.wait_until_idle()
    assert page.tab.get_attribute("#top li:first-child button", "aria-pressed") == "true"
    assert page.tab.get_attribute("body", "class") == ""
    page.tab.evaluate(cancel, "#strip li:nth-child(4) button")
    page.wait_until_idle()
    assert "“cat”" in page.text("#verdict")
    assert page.text("#picture-title") == "Not explained yet"
    assert page.text("#sentence") + page.text("#command") == ""
    assert page.tab.locator("#changed figure, #curve svg").count() == 0
    view = page.tab.get_attribute("#strip li:nth-child(4) img", "src")
    assert (page.picture() == pixels(view)).all()


def test_markup_in_names_of_files_and_classes_stays_text(
    visit: Any, browser: Any, tmp_path: Path
) -> None:
    page = visit()
    tab = page.tab
    name = f"{MARKUP.replace('/', ' ')}.png"
    tab.set_input_files("#choose", file(name, photo((70, 10, 60))))
    tab.wait_for_selector("#strip li:nth-child(5) [aria-pressed=true]")
    page.wait_until_idle()
    tab.fill("#target", MARKUP)
    tab.fill("#other", "cat")
    tab.press("#other", "Enter")
    page.wait_until_shown(json.dumps(f"{MARKUP} rather than cat")[1:-1])
    for place in ("#picture-title", "#red ~ [data-target-name]", "#sentence", "#curve"):
        assert MARKUP in page.text(place), place
    assert name in page.text("#verdict")
    tab.click("#tab-methods")
    assert MARKUP in page.text("#panel-methods h2")
    tab.click("#tab-away")
    assert "onerror" in page.text("#command")
    for ending in ("html", "svg"):
        with tab.expect_download() as download:
            tab.click(f"[data-file={ending}]")
        path = tmp_path / f"taken.{ending}"
        download.value.save_as(path)
        taken = browser.new_page()
        taken.goto(path.as_uri())
        assert "onerror" in taken.content()
        assert is_unhurt(taken), ending
        taken.close()
    assert is_unhurt(tab)


def is_unhurt(tab: Any) -> bool:
    """Return whether no markup of a name has become an element, or has run."""
    return tab.evaluate("() => !window.hurt && !document.querySelector('[src=x], [onerror]')")


def test_two_tabs_ask_at_once(visit: Any) -> None:
    first, second = visit(), visit()
    wanted = {"horse": first, "sofa": second}
    for name, page in wanted.items():
        page.tab.fill("#target", name)
        page.tab.press("#target", "Enter")
    for name, page in wanted.items():
        page.wait_until_shown(name)
        assert f"For and against: {name}" in page.text("#picture-title")


def test_everything_can_be_done_with_the_keyboard(visit: Any) -> None:
    page = visit()
    tab = page.tab
    reached: list[str] = []
    for _ in range(40):
        tab.keyboard.press("Tab")
        reached.append(tab.evaluate("() => document.activeElement.id"))
        if reached[-1] == "sanity":
            break
    wanted = ["choose", "tab-picture", "picture", "mix", "threshold", "red", "blue", "target"]
    assert [name for name in reached if name in wanted] == wanted
    tab.focus("#picture")
    tab.keyboard.press("ArrowRight")
    assert "pixel 84, 80" in page.text("#readout")
    assert tab.get_attribute("#readout", "aria-live") == "polite"
    tab.focus("[name=mode][value=evidence]")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowRight")
    assert tab.is_visible("#brush")
    tab.focus("#picture")
    tab.keyboard.press(" ")
    assert "% painted" in page.text("#painted")
    tab.focus("#tab-picture")
    tab.keyboard.press("ArrowRight")
    assert tab.is_visible("#panel-methods")
    tab.keyboard.press("ArrowLeft")
    tab.focus("#top li:nth-child(2) button")
    tab.keyboard.press("Enter")
    page.wait_until_shown("person")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(visit: Any, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = visit(color_scheme=scheme)
    for tab in ("picture", "methods", "away"):
        page.tab.click(f"#tab-{tab}")
        found = axe.Axe().run(page.tab).response["violations"]
        serious = [f"{k['id']}: {k['help']}" for k in found if k["impact"] not in HARMLESS]
        assert serious == [], tab


def test_a_phone_shows_all_without_scrolling_sideways(visit: Any) -> None:
    page = visit(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    tab = page.tab
    assert tab.is_visible("text=Take a photo")
    tab.locator("#picture").tap()
    assert re.search("pixel (79|80), (79|80): ", page.text("#readout"))
    assert tab.is_visible("#circle")
    for name in ("picture", "methods", "away"):
        tab.tap(f"#tab-{name}")
        width = tab.evaluate("() => document.documentElement.scrollWidth")
        assert width <= 360, name


def test_files_are_taken_away(visit: Any, tmp_path: Path) -> None:
    page = visit()
    page.tab.click("#tab-away")
    starts = {"png": b"\x89PNG", "json": b"{", "npy": b"\x93NUMPY", "html": b"<!doctype html>"}
    for ending, start in starts.items():
        with page.tab.expect_download() as download:
            page.tab.click(f"[data-file={ending}]")
        assert download.value.suggested_filename == f"collage-7-cat.{ending}"
        download.value.save_as(tmp_path / ending)
        assert (tmp_path / ending).read_bytes().startswith(start)
    assert "\ndmbp explain collage.png --classes" in page.text("#command")
    python = """dmbp.explain(\n    sample_photos()["collage"][0],\n    target='cat'"""
    assert python in page.text("#python")


def test_the_report_works_offline(browser: Any, tmp_path: Path) -> None:
    """The script of `report.html` runs under its own policy, and asks for nothing."""
    path = tmp_path / "report.html"
    path.write_text(report_page())
    tab = browser.new_page()
    complaints: list[str] = []
    requests: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(path.as_uri())
    assert tab.locator("[data-target]:visible").count() == 2  # one of each photo
    tab.locator("[data-slider]:visible").first.fill("25")
    opacity = "element => getComputedStyle(element).opacity"
    assert tab.locator("[data-evidence]:visible").first.evaluate(opacity) == "0.25"
    tab.locator("[data-chooser]").first.select_option("1")
    assert tab.locator("[data-photo] [data-target='1']").first.is_visible()
    assert not tab.locator("[data-photo] [data-target='0']").first.is_visible()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("data:", "file:"))] == []
    tab.close()
