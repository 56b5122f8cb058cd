"""The command line: what comes out, and one sentence with exit code 2 for all that can go wrong."""

import json
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from dmbp import DMBP, cli
from dmbp.cli import app
from dmbp.decompose import PRESETS
from dmbp.decompose.settings import OBJECTIVES
from dmbp.errors import InputError
from dmbp.models import Preprocessing, load_model
from dmbp.models.torchvision_models import import_torchvision
from dmbp.render import PALETTES
from dmbp.render.pictures import FORMATS
from dmbp.workflows.prediction import ModelChoice

MODELS = """
import torch
from torch import nn
from dmbp.models import Classifier, Preprocessing

def net(*layers):
    torch.manual_seed(0)
    layers = layers or (nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    return nn.Sequential(nn.Conv2d(3, 4, 3), *layers)

def smooth():
    torch.manual_seed(1)
    return net(nn.Tanh(), nn.Conv2d(4, 4, 3), nn.GELU(), *net()[2:])
def good(): return Classifier("good", net(), Preprocessing(32, 32), ("cat", "dog", "hamster"))
def yes_no():
    return net(nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 1))
def sure(): return net(*yes_no()[1:], *last(nn.Sigmoid(), bias=5.0))
def unsure(): return net(*yes_no()[1:], *last(nn.Sigmoid(), bias=-5.0))
def last(*layers, bias):
    linear = nn.Linear(1, 1)
    nn.init.constant_(linear.bias, bias)
    return linear, *layers
def spectral():
    class Spectral(nn.Module):
        def forward(self, x): return torch.fft.rfft2(x).abs().mean((2, 3))
    return net(nn.ReLU(), Spectral())
def segmenter(): return net(nn.ReLU())
def grey():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), *net()[1:])
grey_module = grey()
def deaf():
    model = net()
    nn.init.constant_(model[0].weight, 1e-20)
    nn.init.constant_(model[0].bias, 1.0)
    return model
def star(): return net()
def double(): return net().double()
def poisoned():
    model = net()
    nn.init.constant_(model[0].weight, float("nan"))
    return model
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cli_models.py").write_text(MODELS)
    noise = numpy.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=numpy.uint8)
    Image.fromarray(noise).save(tmp_path / "photo.jpg")
    Image.fromarray(noise).convert("L").save(tmp_path / "photo.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def explain(*arguments: str, model: str = "cli_models:good") -> Result:
    return run("explain", "--model", model, "--iterations", "3", *arguments)


def test_a_picture_and_a_record_for_every_photo(folder: Path) -> None:
    result = explain("photo.jpg", "photo.png", "--out", "results")
    assert result.exit_code == 0, result.output
    assert result.output.count("predicted") == 2
    names = sorted(path.name for path in (folder / "results").iterdir())
    assert names == ["photo-2.json", "photo-2.png", "photo.json", "photo.png"]
    record = json.loads((folder / "results" / "photo.json").read_text())
    (target,) = record["targets"]
    terms = target["terms"]
    total = terms["positive"] + terms["negative"] + terms["nuisance"]
    assert total == pytest.approx(terms["output"], rel=1e-4)
    assert target["name"] == record["predicted"]["name"]
    assert record["exactness"] <= 1e-4
    assert record["settings"]["iterations"] == 3
    with Image.open(folder / "results" / "photo.png") as picture:
        assert picture.format == "PNG"


def test_targets_and_settings(folder: Path) -> None:
    result = explain(
        "photo.jpg", "--target", "cat", "--target", "2", "--preset", "paper", "--objective", "pos"
    )
    assert result.exit_code == 0, result.output
    record = json.loads((folder / "dmbp-out" / "photo.json").read_text())
    assert [target["name"] for target in record["targets"]] == ["cat", "hamster"]
    assert record["settings"]["objective"] == "pos"
    assert record["settings"]["reference"] == "zero"


@pytest.mark.parametrize(("model", "says"), [("sure", "predicted"), ("unsure", "predicted not")])
def test_what_a_sigmoid_puts_out_is_a_probability(folder: Path, model: str, says: str) -> None:
    result = explain("photo.jpg", model=f"cli_models:{model}")
    assert result.exit_code == 0, result.output
    (target,) = json.loads((folder / "dmbp-out" / "photo.json").read_text())["targets"]
    assert target["probability"] == pytest.approx(target["terms"]["output"], rel=1e-5)
    assert (target["probability"] > 0.9) == (model == "sure")
    assert says in result.output


@pytest.mark.usefixtures("folder")
def test_two_classes_of_one_name_are_asked_about_by_number(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("apple\nApple\nplum\n")
    result = explain("photo.jpg", "--classes", "names.txt", "--target", "apple")
    assert result.exit_code == 2
    assert "the classes 0, 1 are all called 'apple': give the number" in result.stderr


@pytest.mark.usefixtures("folder")
def test_kernels_are_asked_for_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that they are compiled beside it; the settings are those it will learn by."""
    order: list[object] = []
    monkeypatch.setattr(ModelChoice, "load", lambda _: order.append("loaded") or abort())
    monkeypatch.setattr(
        "dmbp.attribution.dmbp.prepare", lambda like, **by: order.append((like.device.type, by))
    )

    def abort() -> None:
        raise InputError("enough")

    explain("photo.jpg", "--objective", "pos")
    by = {"loss": OBJECTIVES["pos"], "precision": "auto"}
    assert order == [("cpu", by), "loaded"]


def test_a_class_asked_about_by_name_and_number_is_drawn_once(folder: Path) -> None:
    targets = ("--target", "hamster", "--target", "cat", "--target", "2")
    result = explain("photo.jpg", *targets)
    assert result.exit_code == 0, result.output
    record = json.loads((folder / "dmbp-out" / "photo.json").read_text())
    assert [target["name"] for target in record["targets"]] == ["hamster", "cat"]


@pytest.mark.parametrize(("line", "sites"), [("secant", ["1", "3*"]), ("pieces:4:2", ["3"])])
def test_lines_and_sites(folder: Path, line: str, sites: list[str]) -> None:
    """As DMBP is told in Python, and the record says so."""
    asked = [part for site in sites for part in ("--sites", site)]
    result = explain(
        "photo.jpg", "--raw", "--smooth", line, *asked, "--target", "1", model="cli_models:smooth"
    )
    assert result.exit_code == 0, result.output
    record = json.loads((folder / "dmbp-out" / "photo.json").read_text())
    assert record["settings"]["sites"] == ", ".join(sites)
    assert record["settings"]["smooth"] == line
    assert (record["approximation_error"] > 0) == line.startswith("pieces")
    classifier = load_model("cli_models:smooth")
    with Image.open("photo.jpg") as photo:
        inputs = classifier.preprocessing.tensor(classifier.preprocessing.view(photo))
    explainer = DMBP(classifier.module, iterations=3, smooth=line, sites=sites)
    maps = explainer.attribute(inputs, target=1)
    torch.testing.assert_close(torch.from_numpy(numpy.load("dmbp-out/photo.npy")), maps)


def test_everything_that_can_be_written(folder: Path) -> None:
    result = explain(
        *("photo.jpg", "--target", "cat", "--target", "dog", "--report", "--raw", "--gif"),
        *("--picture", "svg", "--colours", "purple-orange", "--overlay", "0.2", "--soften", "0"),
    )
    assert result.exit_code == 0, result.output
    out = folder / "dmbp-out"
    assert sorted(path.name for path in out.iterdir()) == [
        *("photo-0-cat-map.png", "photo-0-cat.gif", "photo-1-dog-map.png", "photo-1-dog.gif"),
        *("photo.json", "photo.npy", "photo.svg", "report.html"),
    ]
    maps = numpy.load(out / "photo.npy")
    assert maps.shape == (2, 3, 32, 32)
    with Image.open(out / "photo-0-cat-map.png") as image:
        levels = numpy.asarray(image).astype(float) - 32768
    pixels = maps[0].sum(0)
    assert numpy.abs(levels / 32767 - pixels / numpy.abs(pixels).max()).max() < 1e-4
    with Image.open(out / "photo-1-dog.gif") as gif:
        assert gif.n_frames == 29
    assert "photo.jpg" in (out / "report.html").read_text()


def test_a_folder_of_photos(folder: Path) -> None:
    (folder / "album").mkdir()
    for name in ("b.jpg", "a.png"):
        (folder / "album" / name).write_bytes((folder / "photo.jpg").read_bytes())
    (folder / "album" / "notes.txt").write_text("no photo")
    result = explain("album", "--report", "--out", "results")
    assert result.exit_code == 0, result.output
    names = sorted(path.name for path in (folder / "results").iterdir())
    assert names == ["a.json", "a.png", "b.json", "b.png", "report.html"]
    page = (folder / "results" / "report.html").read_text()
    assert page.index("album/a.png") < page.index("album/b.jpg")


def test_what_cannot_be_read_in_a_folder_is_left_out(folder: Path) -> None:
    (folder / "many").mkdir()
    for name in ("good.jpg", "empty.jpg", "text.png"):
        (folder / "many" / name).write_bytes(b"")
    (folder / "many" / "good.jpg").write_bytes((folder / "photo.jpg").read_bytes())
    result = explain("many")
    assert result.exit_code == 0
    assert result.stderr.startswith("note: left out: many/empty.jpg is not an image")
    assert "many/text.png" in result.stderr
    assert [path.name for path in (folder / "dmbp-out").glob("*.png")] == ["good.png"]
    (folder / "many" / "good.jpg").unlink()
    none = explain("many")
    assert none.exit_code == 2
    assert "empty.jpg" in none.stderr
    assert "text.png" in none.stderr


def test_a_network_of_one_channel(folder: Path) -> None:
    for model in ("cli_models:grey", "cli_models:grey_module"):
        result = explain("photo.jpg", "--report", "--gif", model=model)
        assert result.exit_code == 0, result.stderr
    record = json.loads((folder / "dmbp-out" / "photo.json").read_text())
    assert record["preprocessing"]["mean"] == [0.449]
    seen = Preprocessing.for_channels(1).view(Image.open("photo.jpg"))
    red, green, blue = numpy.asarray(seen).transpose(2, 0, 1)
    assert numpy.array_equal(red, green)
    assert numpy.array_equal(green, blue)


def test_a_network_that_ignores_its_input_is_pointed_out(folder: Path) -> None:
    result = explain("photo.jpg", model="cli_models:deaf")
    assert result.exit_code == 0
    assert result.stderr.startswith("note: 1 of 1 maps are nothing but rounding")
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_record_says_which_weights(folder: Path) -> None:
    state = load_model("cli_models:good").module.state_dict()
    torch.save({f"_orig_mod.{name}": tensor for name, tensor in state.items()}, folder / "w.pth")
    assert explain("photo.jpg", "--weights", "w.pth", "--report").exit_code == 0
    assert json.loads((folder / "dmbp-out" / "photo.json").read_text())["weights"] == "w.pth"
    assert "<td>w.pth</td>" in (folder / "dmbp-out" / "report.html").read_text()


def test_class_names_as_windows_writes_them(folder: Path) -> None:
    (folder / "names.txt").write_bytes("\ufeffcat\r\ndog\r\nhamster\r\n".encode())
    result = explain("photo.jpg", "--classes", "names.txt", "--target", "cat")
    assert result.exit_code == 0, result.stderr


def test_a_single_output_is_a_yes_or_no(folder: Path) -> None:
    result = explain("photo.jpg", "--gif", model="cli_models:yes_no")
    assert result.exit_code == 0, result.output
    (target,) = json.loads((folder / "dmbp-out" / "photo.json").read_text())["targets"]
    output = torch.tensor(target["terms"]["output"])
    assert target["probability"] == pytest.approx(output.sigmoid().item(), abs=1e-4)
    assert "predicted not class 0 (99%)" in explain("photo.jpg", model="cli_models:unsure").output
    assert "predicted class 0 (99%)" in explain("photo.jpg", model="cli_models:sure").output


def test_a_model_in_another_precision(folder: Path) -> None:
    result = explain("photo.jpg", model="cli_models:double")
    assert result.exit_code == 0, result.output
    result = run("doctor", "cli_models:double", "--size", "32")
    assert "float64 input 1×3×32×32" in result.output


def test_a_name_between_colons_is_no_picture(folder: Path) -> None:
    assert "cli_models:star:" in run("doctor", "cli_models:star", "--size", "32").output


def test_two_photos_never_share_a_file(folder: Path) -> None:
    (folder / "photo-2.jpg").write_bytes((folder / "photo.jpg").read_bytes())
    result = explain("photo-2.jpg", "photo.jpg", "photo.png", "photo.jpg")
    assert result.exit_code == 0, result.output
    names = sorted(path.stem for path in (folder / "dmbp-out").glob("*.png"))
    assert names == ["photo", "photo-2", "photo-3", "photo-4"]


def test_the_choices_are_those_of_the_tables() -> None:
    assert [p.value for p in cli.Preset] == list(PRESETS)
    assert [o.value for o in cli.Objective] == list(OBJECTIVES)
    assert [c.value for c in cli.Colours] == list(PALETTES)
    assert [f".{p.value}" for p in cli.Picture] == list(FORMATS)


def test_brackets_in_a_name_are_printed_as_they_are(folder: Path) -> None:
    (folder / "with [red] brackets.jpg").write_bytes((folder / "photo.jpg").read_bytes())
    result = explain("with [red] brackets.jpg")
    assert "dmbp-out/with [red] brackets.png" in result.output
    assert (folder / "dmbp-out" / "with [red] brackets.png").exists()


def test_quiet_prints_nothing(folder: Path) -> None:
    result = explain("photo.jpg", "--quiet")
    assert (result.exit_code, result.output) == (0, "")


def test_models_and_version() -> None:
    assert "resnet50" in run("models").output.split()
    assert run("--version").output.startswith("dmbp ")


def _bad(folder: Path) -> None:
    (folder / "cut.jpg").write_bytes((folder / "photo.jpg").read_bytes()[:1500])
    Image.new("L", (1, 1)).save(folder / "dot.png")
    Image.new("1", (20_000, 10_000)).save(folder / "huge.png")
    (folder / "a_file").write_text("")
    (folder / "nothing").mkdir()
    (folder / "taken" / "photo.json").mkdir(parents=True)
    (folder / "names.txt").write_text("a\nb\n")
    squeezenet = import_torchvision().models.squeezenet1_1(weights=None)
    save_file(squeezenet.state_dict(), folder / "squeezenet.safetensors")


BAD: dict[str, tuple[list[str], str, str]] = {
    "missing photo": (["nowhere.jpg"], "cli_models:good", "there is no file nowhere.jpg"),
    "truncated photo": (["cut.jpg"], "cli_models:good", "cut.jpg cannot be read"),
    "no photo": (["cli_models.py"], "cli_models:good", "is not an image"),
    "tiny photo": (["dot.png"], "cli_models:good", "1×1 pixels"),
    "huge photo": (["huge.png"], "cli_models:good", "more than 150 megapixels"),
    "one bad of two": (["photo.jpg", "dot.png"], "cli_models:good", "1×1 pixels"),
    "nan weights": (["photo.jpg"], "cli_models:poisoned", "NaN or infinity, first in '0.weight'"),
    "other weights": (
        ["photo.jpg", "--weights", "squeezenet.safetensors"],
        "alexnet",
        "missing, first 'features.3.weight'",
    ),
    "missing weights": (
        ["photo.jpg", "--weights", "no.pth"],
        "resnet18",
        "there is no weights file",
    ),
    "weights for a model": (
        ["photo.jpg"],
        "squeezenet.safetensors",
        "give its architecture with --model, as resnet50 or my_module:make_model, and --weights",
    ),
    "unknown model": (["photo.jpg"], "resnet500", "did you mean 'resnet50'"),
    "class out of range": (["photo.jpg", "--target", "3"], "cli_models:good", "classes 0 to 2"),
    "misspelt class": (["photo.jpg", "--target", "hamstr"], "cli_models:good", "mean 'hamster'"),
    "unsupported": (["photo.jpg"], "cli_models:spectral", "aten.fft_rfft2.default at '2'"),
    "no classes": (["photo.jpg"], "cli_models:segmenter", "output has shape (1, 4, 222, 222)"),
    "device": (["photo.jpg", "--device", "cuda:9"], "cli_models:good", "'cuda:9' is not available"),
    "no device": (["photo.jpg", "--device", "tpux"], "cli_models:good", "'tpux' is not available"),
    "too few names": (
        ["photo.jpg", "--classes", "names.txt", "--target", "b"],
        "cli_models:good",
        "2 class names were given for a model with 3 outputs",
    ),
    "a folder in the way": (
        ["photo.jpg", "--out", "taken"],
        "cli_models:good",
        "a folder has that",
    ),
    "meta": (["photo.jpg", "--device", "meta"], "cli_models:good", "computes nothing"),
    "over the photo": (["photo.png", "--out", "."], "cli_models:good", "over the photo itself"),
    "empty folder": (["nothing"], "cli_models:good", "no photos in the folder nothing"),
    "iterations": (
        ["photo.jpg", "--iterations", "-2"],
        "cli_models:good",
        "iterations must be a whole number",
    ),
    "misspelt line": (
        ["photo.jpg", "--smooth", "secnt"],
        "cli_models:smooth",
        "did you mean 'secant'?",
    ),
    "too few pieces": (
        ["photo.jpg", "--smooth", "pieces:0"],
        "cli_models:smooth",
        "a number of pieces from 1",
    ),
    "misspelt site": (
        ["photo.jpg", "--sites", "1x"],
        "cli_models:smooth",
        "the network has no site '1x'; did you mean '1'",
    ),
    "out is a file": (
        ["photo.jpg", "--out", "a_file"],
        "cli_models:good",
        "cannot write to a_file",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_sentence_and_leaves_nothing(folder: Path, case: str) -> None:
    _bad(folder)
    arguments, model, sentence = BAD[case]
    before = sorted(folder.rglob("*"))
    result = explain(*arguments, model=model)
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr
    assert result.stderr.startswith("dmbp: ")
    assert len(result.stderr.strip().splitlines()) == 1
    after = [path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts]
    assert after == before


def test_an_interrupt_is_said_and_no_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(DMBP, "explain", interrupted)
    result = explain("photo.jpg")
    assert result.exit_code == 130
    assert result.stderr == "dmbp: interrupted\n"


def test_no_room_on_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    result = explain("photo.jpg")
    assert result.exit_code == 2
    assert "cannot write to dmbp-out: No space left on device" in result.stderr
    assert not list((folder / "dmbp-out").iterdir())


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
    explain("photo.jpg")
    assert torch.get_num_threads() == threads
