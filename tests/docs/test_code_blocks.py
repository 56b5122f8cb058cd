"""Every block of Python on a page runs, and every command parses, or stands beside a reason."""

import glob
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import typer
from PIL import Image

import dmbp
from dmbp.cli import app
from tests.docs.pages import PAGES, Page
from tests.docs.prepared import prepare

LANGUAGES = {"python", "shell", "text", "toml", "json", ""}

NOT_OF_THE_READER = {"CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md"}
"""Pages whose Python is a part of our own code, or none."""

WITH_PYTHON = [page for page in PAGES if page.python and page.name not in NOT_OF_THE_READER]

MOST_NOT_RUN = 4
"""Blocks of Python with a reason not to run. More than that would be a habit."""


def has_colours(folder: Path, _: dict[str, Any]) -> None:
    """Both colours, each on a part of the picture."""
    for picture in ("heart.png", "sound.png", "patient.png"):
        with Image.open(folder / picture) as image:
            pixels = numpy.asarray(image.convert("RGB"), dtype=int)
        red, blue = pixels[..., 0] - pixels[..., 2], pixels[..., 2] - pixels[..., 0]
        assert min((red > 80).mean(), (blue > 80).mean()) > 1e-3, picture


def has_datasets(_: Path, names: dict[str, Any]) -> None:
    assert names["maps"].shape == (12, 3, 16, 16)
    assert list(names["frame"].target) == ["cat", "dog"]


def has_files(folder: Path, names: dict[str, Any]) -> None:
    assert names["again"] == names["explanation"].decomposition
    for file in ("cat.png", "cat.svg", "cat.html", "methods.png", "gradcam.png"):
        assert (folder / file).stat().st_size > 1000, file


def has_regions(folder: Path, _: dict[str, Any]) -> None:
    regions = dmbp.load(folder / "regions.safetensors").targets
    assert [str(target) for target in regions][1] == "region:1@box=2,2,14,30"


def has_events(folder: Path, _: dict[str, Any]) -> None:
    assert list(folder.glob("runs/first/events.out.tfevents.*"))


RESULTS: dict[str, Callable[[Path, dict[str, Any]], None]] = {
    "docs/how-to/signals.md": has_colours,
    "docs/how-to/many-photos.md": has_datasets,
    "docs/how-to/python.md": has_files,
    "docs/how-to/training.md": has_events,
    "docs/reference/targets.md": has_regions,
}
"""What is there once a page has run."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore:the model is in training mode:UserWarning")
@pytest.mark.filterwarnings(r"ignore:\d+ of \d+ maps are zero:UserWarning")  # untrained networks
@pytest.mark.filterwarnings("ignore:GradCAM's map at .* is zero everywhere:UserWarning")
@pytest.mark.filterwarnings("ignore:You are using the legacy TorchScript-based ONNX export")
@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Page, cheap: Path) -> None:
    names = prepare(page, cheap)
    for block in page.python:
        if block.not_run is None:
            # Padded, so that a traceback names the line of the page.
            code = "\n" * (block.line - 1) + block.code
            exec(compile(code, page.name, "exec"), names)
        else:
            compile(block.code, page.name, "exec")
    if check := RESULTS.get(page.name):
        check(cheap, names)


def test_few_blocks_do_not_run() -> None:
    found = [f"{p.name}:{k.line}: {k.not_run}" for p in PAGES for k in p.python if k.not_run]
    assert 0 < len(found) <= MOST_NOT_RUN, found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_says_its_language(page: Page) -> None:
    """An unknown one, such as `py`, would not be run."""
    languages = {block.language for block in page.blocks if not block.language.startswith("{")}
    assert languages <= LANGUAGES


def parsed(command: Any, name: str, arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """The full name of the command that a line calls, and the values of its parameters."""
    if hasattr(command, "commands"):
        while arguments and arguments[0].startswith("-"):
            arguments = arguments[1:]
        word, *rest = arguments
        assert word in command.commands, f"there is no command {name} {word}"
        return parsed(command.commands[word], f"{name} {word}", rest)
    return name, command.make_context(name, list(arguments)).params


def words_of(line: str) -> list[str]:
    """The arguments of a line, with what stands for others left out and patterns expanded."""
    words = [word for word in shlex.split(line, comments=True)[1:] if word != "…"]
    expanded: list[str] = []
    for word in words:
        found = glob.glob(word) if "*" in word and "/" in word else []
        expanded += sorted(found) or [word]  # as shells do, or a pattern of names, quoted
    return expanded


COMMANDS = sorted({command for page in PAGES for command in page.commands})


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_parses(line: str, cheap: Path) -> None:
    prepare(Page(cheap / "none.md"), cheap) if "*" in line else None
    words = words_of(line)
    if words and words[0].isupper():  # `dmbp COMMAND`
        return
    parsed(typer.main.get_command(app), "dmbp", words)


NEEDS_MORE = (
    "--model",
    "--weights",
    "serve",
    "doctor",
    "bench",
    "boxes",
    "sanity",
    "demo",
    "husky",
)
"""Words of commands that take other models, other files or long."""


def is_cheap(line: str) -> bool:
    """Whether a command runs in seconds with the built-in model and a photo."""
    words = shlex.split(line, comments=True)[1:]
    if any(more in word for word in words for more in NEEDS_MORE):
        return False
    photo = words[:1] == ["explain"] and words[1:2] == ["photo.jpg"]
    return photo or words[0] in ("methods", "models")


CHEAP = sorted({shlex.join(shlex.split(k, comments=True)) for k in COMMANDS if is_cheap(k)})


def test_commands_are_run() -> None:
    assert len(CHEAP) >= 5
    assert len(COMMANDS) > 50


@pytest.mark.parametrize("line", CHEAP)
def test_a_command_runs(line: str, cheap: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(Page(cheap / "none.md"), cheap)
    with pytest.raises(SystemExit) as ended:
        app(words_of(line))
    assert ended.value.code == 0, capsys.readouterr().err
