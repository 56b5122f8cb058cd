"""Programs of `torch.export` are explained as the module they were exported from."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from typer.testing import CliRunner

from dmbp.cli import app
from dmbp.errors import ModelError, WeightsError
from dmbp.linear.model.wrappers import OneAtATime
from dmbp.models import load_model
from tests.models.networks import assert_same_map, small_network
from tests.models.program.tampering import Members, edit_program, tamper
from tests.real import photographs

DYNAMIC = ({0: Dim.AUTO},)


def save(model: nn.Module, path: Path, images: Tensor, dynamic: object = None) -> Path:
    torch.export.save(torch.export.export(model, (images,), dynamic_shapes=dynamic), path)
    return path


def test_the_real_squeezenet_as_a_program(shared: Path, tmp_path: Path) -> None:
    weights = shared / "models" / "squeezenet1_1_imagenet.safetensors"
    module = load_model("squeezenet1_1", weights=weights)
    images, classes = photographs(shared, module.preprocessing, 2)
    program = load_model(str(save(module.module, tmp_path / "net.pt2", images, DYNAMIC)))
    assert program.preprocessing.crop == 224
    assert_same_map(program, module.module, images[:1], int(classes[0]))


@pytest.mark.parametrize("dynamic", [None, DYNAMIC])
def test_several_images_and_targets(tmp_path: Path, dynamic: object) -> None:
    """A program that was exported for one image is run on one image after the other."""
    model, images = small_network(), torch.randn(3, 3, 20, 20)
    example = images if dynamic else images[:1]
    program = load_model(str(save(model, tmp_path / "net.pt2", example, dynamic)))
    assert isinstance(program.module, OneAtATime) == (dynamic is None)
    assert program.preprocessing.crop == 20
    assert torch.allclose(program.module(images), model(images))
    assert_same_map(program, model, images, [[0, 1], [2], [1]])


def test_a_program_for_a_fixed_batch(tmp_path: Path) -> None:
    model, images = small_network(), torch.randn(4, 3, 16, 16)
    save(model, tmp_path / "net.pt2", images)
    with pytest.warns(UserWarning, match="for batches of 4, so that it runs on 4 copies of every"):
        program = load_model(str(tmp_path / "net.pt2"))
    assert torch.allclose(program.module(images[:2]), model(images[:2]), atol=1e-6)
    assert_same_map(program, model, images[:2], [0, 1])


def tampered(path: Path, change: Callable[[Any], None]) -> str:
    """Change the JSON of a program, and return the name of the new file."""

    def route(members: Members, _: Path) -> None:
        edit_program(members, change)

    return str(tamper(path, route, path.with_name("mark")))


def test_declared_sizes_are_limited(tmp_path: Path) -> None:
    """Ten kilobytes may ask for images of any size, and for tensors of any size on the way."""
    path = save(small_network(), tmp_path / "net.pt2", torch.zeros(1, 3, 32, 32))

    def grow_input(program: Any) -> None:
        values = program["graph_module"]["graph"]["tensor_values"]
        values["input"]["sizes"][2:] = [{"as_int": 10**6}] * 2

    def grow_pooling(program: Any) -> None:
        nodes = program["graph_module"]["graph"]["nodes"]
        (pool,) = (node for node in nodes if "adaptive_avg_pool2d" in node["target"])
        pool["inputs"][1]["arg"]["as_ints"] = [20_000, 20_000]

    with pytest.raises(ModelError, match=r"of 1000000×1000000 pixels; .* up to 1024×1024 pixels"):
        load_model(tampered(path, grow_input))
    with pytest.raises(ModelError, match=r"would compute a tensor of 1×4×20000×20000 numbers"):
        load_model(tampered(path, grow_pooling))


def test_a_program_from_a_factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(small_network(), tmp_path / "net.pt2", torch.randn(1, 3, 32, 32))
    (tmp_path / "program_models.py").write_text(
        "import torch\n"
        "from dmbp.models import Classifier, Preprocessing\n"
        "def bare(): return torch.export.load('net.pt2')\n"
        "def module(): return bare().module()\n"
        "def full(): return Classifier('x', bare(), Preprocessing(32, 32), ('a', 'b', 'c'))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("bare", "module", "full"):
        classifier = load_model(f"program_models:{name}")
        assert classifier.module(torch.zeros(1, 3, 32, 32)).shape == (1, 3)
        assert not any(part.training for part in classifier.module.modules())
    assert classifier.classes == ("a", "b", "c")


def test_the_commands_take_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    Image.effect_noise((40, 30), 60).convert("RGB").save("photo.jpg")
    save(small_network(), tmp_path / "net.pt2", torch.randn(1, 3, 16, 16))
    arguments = ["photo.jpg", "--model", "net.pt2"]
    explained = CliRunner().invoke(app, ["explain", *arguments, "--target", "0", "--target", "1"])
    assert explained.exit_code == 0, explained.output
    methods = ["--methods", "gradient,integrated_gradients"]
    compared = CliRunner().invoke(app, ["compare", *arguments, *methods])
    assert compared.exit_code == 0, compared.output
    assert "left out" not in compared.output
    checked = CliRunner().invoke(app, ["sanity", *arguments, "--methods", "gradient,random"])
    assert checked.exit_code == 0, checked.output
    correlation = json.loads(Path("dmbp-out/photo-sanity.json").read_text())["correlation"]
    assert correlation["random"] == pytest.approx(1.0)
    assert abs(correlation["gradient"]) < 0.999


@pytest.mark.slow
def test_a_damaged_program_is_one_sentence(tmp_path: Path) -> None:
    """torch logs a traceback of its own, which would be printed by a fresh process."""
    (tmp_path / "text.pt2").write_text("hello")
    program = "from dmbp.cli import app; app()"
    run = [sys.executable, "-c", program, "doctor", str(tmp_path / "text.pt2")]
    found = subprocess.run(run, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert len(found.stderr.splitlines()) == 1, found.stderr


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(4, 2), (4,)),
        (nn.Conv1d(2, 2, 3), (2, 9)),
        (nn.Conv2d(10, 2, 3), (10, 8, 9)),
        (nn.Conv3d(1, 2, 3), (1, 6, 5, 4)),
    ],
)
def test_a_program_for_other_inputs_states_their_shape(
    layer: nn.Module, shape: tuple[int, ...], tmp_path: Path
) -> None:
    layers = layer, nn.ReLU(), nn.Flatten()
    network = nn.Sequential(*layers).eval()
    save(network, tmp_path / "net.pt2", torch.zeros(1, *shape))
    classifier = load_model(str(tmp_path / "net.pt2"))
    assert classifier.input_shape == shape
    inputs = torch.randn(3, *shape)
    assert torch.allclose(classifier.module(inputs), network(inputs), atol=1e-6)


def test_programs_that_cannot_be_used(tmp_path: Path) -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y

    two = torch.export.export(Two(), (torch.zeros(1, 3, 8, 8), torch.zeros(1, 3, 8, 8)))
    torch.export.save(two, tmp_path / "two.pt2")
    whole = save(
        small_network(), tmp_path / "seventeen.pt2", torch.zeros(17, 3, 16, 16)
    ).read_bytes()
    (tmp_path / "cut.pt2").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.pt2").write_text("hello")
    save(nn.ReLU(), tmp_path / "last.pt2", torch.zeros(1, 16, 24, 3))
    save(nn.Conv3d(1, 2, 3), tmp_path / "volumes.pt2", torch.zeros(17, 1, 6, 6, 6))
    for name, sentence in [
        ("missing.pt2", "there is no model file"),
        ("cut.pt2", "is damaged, or not a program"),
        ("text.pt2", "is damaged, or not a program"),
        ("seventeen.pt2", "was exported for batches of 17"),
        ("two.pt2", "takes 2 inputs"),
        ("last.pt2", r"of shape \(1, 16, 24, 3\), not photos .* give --layout nhwc"),
        ("volumes.pt2", "was exported for batches of 17"),
    ]:
        with pytest.raises(ModelError, match=sentence):
            load_model(str(tmp_path / name))
    with pytest.raises(WeightsError, match="has its weights inside"):
        load_model(str(tmp_path / "seventeen.pt2"), weights=Path("a.pth"))
