"""The command line as a whole: lists, exit codes, and what every command has in common."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dmbp import DMBP
from dmbp.attribution import METHODS
from dmbp.cli.options import Objective, PaletteName, PictureFormat, Preset
from dmbp.decompose import PRESETS
from dmbp.decompose.settings import OBJECTIVES
from dmbp.display import FORMATS
from dmbp.render import PALETTES
from tests.cli.commands import run, run_explain


def test_the_choices_are_those_of_the_tables() -> None:
    assert [p.value for p in Preset] == list(PRESETS)
    assert [o.value for o in Objective] == list(OBJECTIVES)
    assert [c.value for c in PaletteName] == list(PALETTES)
    assert [f".{p.value}" for p in PictureFormat] == list(FORMATS)


def test_models_methods_and_version_are_printed() -> None:
    lines = run("methods").output.splitlines()
    assert [line.split()[0] for line in lines] == list(METHODS)
    assert "resnet50" in run("models").output.split()
    assert run("--version").output.startswith("dmbp ")


def test_a_name_between_colons_is_no_picture(folder: Path) -> None:
    assert (
        "tests.cli.networks:star:"
        in run("doctor", "tests.cli.networks:star", "--size", "32").output
    )


@pytest.mark.usefixtures("folder")
def test_an_interrupt_is_said_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(DMBP, "explain", interrupted)
    result = run_explain("photo.jpg")
    assert result.exit_code == 130
    assert result.stderr == "dmbp: interrupted\n"


COMMANDS = ([Path(sys.executable).with_name("dmbp")], [sys.executable, "-m", "dmbp"])


@pytest.mark.parametrize("command", COMMANDS, ids=["by name", "as a module"])
def test_the_command_is_installed(command: list[str]) -> None:
    """As a user calls it, in a process of its own."""
    done = subprocess.run(
        [*command, "explain", "no.jpg", "--model", "x"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr == "dmbp: there is no file no.jpg\n"


def test_torch_threads_are_left_alone(folder: Path) -> None:
    threads = torch.get_num_threads()
    run_explain("photo.jpg")
    assert torch.get_num_threads() == threads
