"""TorchScript files are recognised by their content, opened on request only, and explained."""

import json
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from dmbp.cli import app
from dmbp.errors import ModelError, WeightsError
from dmbp.models import load_model
from dmbp.models.torchscript_file import is_torchscript
from tests.models.networks import assert_same_map, small_network
from tests.real import photographs

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def save(model: nn.Module, path: Path) -> Path:
    torch.jit.save(torch.jit.script(model.eval()), path)
    return path


@pytest.mark.parametrize("suffix", ["pt", "pth", "jit", "torchscript", "ts"])
def test_files_by_their_content(tmp_path: Path, suffix: str) -> None:
    model, images = small_network(), torch.randn(2, 3, 20, 20)
    path = save(model, tmp_path / f"net.{suffix}")
    classifier = load_model(str(path), trust_model_file=True)
    assert not any(part.training for part in classifier.module.modules())
    assert_same_map(classifier, model, images, [1, 2])


def test_the_real_squeezenet(shared: Path, tmp_path: Path) -> None:
    weights = shared / "models" / "squeezenet1_1_imagenet.safetensors"
    module = load_model("squeezenet1_1", weights=weights)
    images, classes = photographs(shared, module.preprocessing, 1)
    torch.jit.save(torch.jit.trace(module.module, images), tmp_path / "net.pt")
    program = load_model(str(tmp_path / "net.pt"), trust_model_file=True)
    assert program.preprocessing == module.preprocessing
    assert_same_map(program, module.module, images, int(classes[0]))


class WritesOnLoading(nn.Module):
    """Runs code of its own as soon as it is loaded."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark

    @torch.jit.export
    def __getstate__(self) -> str:
        return self.mark

    @torch.jit.export
    def __setstate__(self, state: str) -> None:
        self.mark = state
        self.training = False
        torch.save(torch.zeros(1), state)

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def test_nothing_runs_without_trust(tmp_path: Path) -> None:
    path, mark = tmp_path / "net.pt", tmp_path / "mark"
    save(WritesOnLoading(str(mark)), path)
    sentence = r"net\.pt is not opened, because it is a TorchScript program, .* --trust-model-file"
    with pytest.raises(ModelError, match=sentence):
        load_model(str(path))
    assert not mark.exists()
    load_model(str(path), trust_model_file=True)
    assert mark.exists()  # so the file would have run it


def test_grey_images(tmp_path: Path) -> None:
    grey = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    classifier = load_model(str(save(grey, tmp_path / "grey.pt")), trust_model_file=True)
    assert len(classifier.preprocessing.mean) == 1


def test_files_that_are_no_programs(tmp_path: Path) -> None:
    torch.save(small_network().state_dict(), tmp_path / "weights.pt")
    (tmp_path / "text.jit").write_text("hello")
    whole = save(small_network(), tmp_path / "net.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    with zipfile.ZipFile(tmp_path / "empty.pt", "w") as archive:
        archive.writestr("net/constants.pkl", "")
        archive.writestr("net/code/__torch__.py", "")
    assert is_torchscript(tmp_path / "net.pt")
    for name in ("weights.pt", "text.jit", "cut.pt", "missing.pt", "."):
        assert not is_torchscript(tmp_path / name)
    for name, sentence in [
        ("weights.pt", "does not say which network"),
        ("text.jit", "not one that torch.jit.save wrote"),
        ("missing.jit", "there is no such file"),
        ("empty.pt", "is damaged, or needs operations that torch .* does not have"),
    ]:
        with pytest.raises(ModelError, match=sentence):
            load_model(str(tmp_path / name), trust_model_file=True)
    with pytest.raises(WeightsError, match="has its weights inside"):
        load_model(str(tmp_path / "net.pt"), weights=Path("a.pth"))
    with pytest.raises(WeightsError, match=r"is a TorchScript program.* explain it with --model"):
        load_model("resnet18", weights=tmp_path / "net.pt")


def test_the_commands_take_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    Image.effect_noise((40, 30), 60).convert("RGB").save("photo.jpg")
    save(small_network(), tmp_path / "net.pt")
    arguments = ["photo.jpg", "--model", "net.pt"]
    refused = CliRunner().invoke(app, ["explain", *arguments])
    assert refused.exit_code == 2
    assert "if you trust whoever made the file" in " ".join(refused.output.split())
    trusted = [*arguments, "--trust-model-file"]
    options = ["--preset", "fast", "--target", "0"]
    explained = CliRunner().invoke(app, ["explain", *trusted, *options])
    assert explained.exit_code == 0, explained.output
    checked = CliRunner().invoke(app, ["sanity", *trusted, "--methods", "gradient,random"])
    assert checked.exit_code == 0, checked.output
    correlation = json.loads(Path("dmbp-out/photo-sanity.json").read_text())["correlation"]
    assert abs(correlation["gradient"]) < 0.999
