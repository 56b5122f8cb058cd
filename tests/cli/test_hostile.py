"""Whatever files, names and options a user gives, commands end with one sentence."""

import errno
import json
import os
import shutil
from pathlib import Path

import numpy
import pytest
from PIL import Image
from typer.testing import Result

from dmbp import DMBP
from tests.cli.commands import NETWORKS, run, run_explain

GOOD = f"{NETWORKS}:good"
LONG = "n" * 300


def assert_sentence(result: Result, sentence: str, *, code: int = 2) -> None:
    assert result.exit_code == code, result.output
    assert result.stderr.startswith("dmbp: ")
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.fixture
def hostile(folder: Path) -> Path:
    """The current folder, with a pipe, a link to itself, and photos that are not to be decoded."""
    os.mkfifo("pipe.jpg")
    Path("loop").symlink_to("loop")
    Image.new("1", (16, 10_000)).save("long.png")
    Image.fromarray(numpy.full((20, 20), numpy.nan, numpy.float32)).save("nan.tif")
    with Path("arrays.npy").open("wb") as file:
        numpy.savez(file, numpy.ones(3))
    Path("mathtext.txt").write_text("$\\nosuch$\n$\\frac{1}$\na$b$c\n")
    Path("empty_model.py").write_text(
        "import torch\nfrom tests.cli.networks import net\nmodel = net().to('meta')\n"
    )
    return folder


SENTENCES: dict[str, tuple[list[str], str]] = {
    "long photo": ([LONG], "its name is too long, file systems allow 255 bytes"),
    "long folder": (["photo.jpg", "--out", LONG], "cannot write to n"),
    "long weights": (["photo.jpg", "--weights", f"{LONG}.pth"], "its name is too long"),
    "long classes": (["photo.jpg", "--classes", LONG], "its name is too long"),
    "pipe": (["pipe.jpg"], "pipe.jpg cannot be read: it is a pipe, not a file"),
    "device": (["/dev/zero"], "/dev/zero cannot be read: it is a device, not a file"),
    "classes in a pipe": (["photo.jpg", "--classes", "pipe.jpg"], "it is a pipe, not a file of"),
    "weights in a device": (["photo.jpg", "--weights", "/dev/zero"], "it is a device, not a"),
    "loop": (["loop"], "loop cannot be read: it is a symbolic link that leads back to itself"),
    "loop to write to": (["photo.jpg", "--out", "loop/a"], "cannot write to loop/a: it is a symbo"),
    "long sides": (["long.png"], "16×10000 pixels; one side may be at most 50 times as long"),
    "NaN": (["nan.tif"], "nan.tif cannot be read: it has pixels that are NaN or infinite"),
    "empty model": (["photo.jpg", "--model", ""], "the model's name is empty"),
    "long model": (["photo.jpg", "--model", f"{LONG}.onnx"], "its name is too long"),
    "model without data": (
        ["photo.jpg", "--model", "empty_model:model"],
        "the model's '0.weight' is on the meta device and has no data",
    ),
    "many digits": (["photo.jpg", "--target", "9" * 5000], "is out of range: the model has cla"),
    "long target": (["photo.jpg", "--target", "margin:" + "x" * 9000], "xxx…xxx"),
    "learning rate": (
        ["photo.jpg", "--learning-rate", "1e308"],
        "learning_rate must be above 0 and at most 1,000, not 1e+308",
    ),
    "iterations": (
        ["photo.jpg", "--iterations", "1" + "0" * 20],
        "iterations must be a whole number from 0 to 10,000, not 100000000000000000000",
    ),
    "several arrays": (["photo.jpg", "--hold", "x=arrays.npy"], "has several arrays: save one"),
    "no HPU": (["photo.jpg", "--device", "hpu"], "device 'hpu' is not available"),
    "no MKL-DNN": (["photo.jpg", "--device", "mkldnn"], "'mkldnn' is not available: this PyTorch"),
    "empty device": (["photo.jpg", "--device", ""], "device '' is not available"),
}


@pytest.mark.usefixtures("hostile")
@pytest.mark.parametrize("case", SENTENCES)
def test_one_sentence_at_once(case: str) -> None:
    arguments, sentence = SENTENCES[case]
    model = [] if "--model" in arguments else ["--model", GOOD]
    assert_sentence(run("explain", "--quiet", *model, *arguments), sentence)
    assert not Path("dmbp-out").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["status", "--store", LONG], "its name is too long, file systems allow 255 bytes"),
        (["status", "--store", "/dev/zero"], "it is a device, not a file of results"),
        (["run", "/dev/zero"], "/dev/zero cannot be read: it is a device, not a plan"),
        (["run", LONG], "its name is too long"),
        (["run", "a.toml", "--workers", "1000000"], "a run has at most 256 worker processes"),
        (["run", "a.toml", "--device", "cuda:" + "9" * 30], "there is no device 'cuda:999"),
        (["run", "a.toml", "--shard", "1/" + "9" * 5000], "a shard is written as 1/4 to 4/4"),
    ],
)
def test_benchmarks(arguments: list[str], sentence: str) -> None:
    assert_sentence(run("bench", *arguments), sentence)


def test_pipes_and_devices_in_a_folder_are_a_note(hostile: Path) -> None:
    (hostile / "photos").mkdir()
    shutil.copy("photo.jpg", "photos")
    os.mkfifo("photos/pipe.jpg")
    Path("photos/zero.png").symlink_to("/dev/zero")
    result = run_explain("photos")
    assert result.exit_code == 0, result.output
    assert result.stderr == (
        "note: left out: photos/pipe.jpg cannot be read: it is a pipe, not a file; "
        "photos/zero.png cannot be read: it is a device, not a file\n"
    )
    assert Path("dmbp-out/photo.json").is_file()


@pytest.mark.usefixtures("hostile")
def test_class_names_are_drawn_as_they_are() -> None:
    classes = ["--classes", "mathtext.txt"]
    assert run_explain("photo.jpg", "--gif", "--report", *classes).exit_code == 0
    for command in (["compare"], ["sanity", "--draws", "1"]):
        arguments = ["photo.jpg", "--model", GOOD, "--methods", "gradient", *classes]
        result = run(*command, *arguments)
        assert result.exit_code == 0, result.output


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "name", [b"caf\xe9.jpg", b"n" * 251 + b".jpg", "ü".encode() * 120 + b".jpg"]
)
def test_names_of_photos(name: bytes) -> None:
    """A name that is not UTF-8, and names to which no ending can be added."""
    path = os.fsdecode(name)
    shutil.copy("photo.jpg", path)
    result = run_explain(path, "--report", "--raw")
    assert result.exit_code == 0, result.output
    compared = run("compare", path, "--model", GOOD, "--methods", "gradient")
    assert compared.exit_code == 0, compared.output
    (record,) = (p for p in Path("dmbp-out").glob("*.json") if not p.stem.endswith("methods"))
    assert json.loads(record.read_text())["photo"] == path  # with the bytes that are not UTF-8
    assert Path("dmbp-out/report.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("folder")
def test_a_folder_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    """Provoked, because root may write everywhere."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda _, mode: mode == os.R_OK)
        assert_sentence(run_explain("photo.jpg", "--out", "a/b"), "is not writable")

    def denied(path: Path) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", denied)
    assert_sentence(run_explain("."), "the folder . cannot be read: permission denied")


UNEXPECTED: dict[str, tuple[Exception, str, int]] = {
    "a bug": (ZeroDivisionError("by zero"), "this is a bug in dmbp, please report it", 1),
    "memory": (MemoryError(), "there is not enough memory: use a smaller photo", 2),
    "PyTorch's memory": (
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] can't allocate memory"),
        "there is not enough memory",
        2,
    ),
    "a file": (
        OSError(errno.EIO, "Input/output error", "a.jpg"),
        "a.jpg cannot be used: Input/output error",
        2,
    ),
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("case", UNEXPECTED)
def test_what_is_left_is_one_sentence_too(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error, sentence, code = UNEXPECTED[case]

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(DMBP, "explain", fail)
    command = ["explain", "photo.jpg", "--model", GOOD]
    result = run(*command)
    assert_sentence(result, sentence, code=code)
    assert ("dmbp --debug" in result.stderr) == (code == 1)
    debugged = run("--debug", *command)
    assert debugged.exit_code == code
    assert "Traceback (most recent call last)" in debugged.stderr
    assert debugged.stderr.splitlines()[-1] == result.stderr.rstrip()
    assert "Traceback" not in run(*command).stderr
