"""torchvision's classifiers: weights it publishes, weights from a file, its preprocessing."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from dmbp.errors import WeightsError
from dmbp.models import load_model, untrained_model
from dmbp.models.torchvision_models import import_torchvision


def squeezenet() -> nn.Module:
    return import_torchvision().models.squeezenet1_1(weights=None)


def resnet18(classes: int) -> nn.Module:
    return import_torchvision().models.resnet18(weights=None, num_classes=classes)


def test_weights_from_a_file(tmp_path: Path) -> None:
    model = squeezenet().eval()
    save_file(model.state_dict(), tmp_path / "squeezenet.safetensors")
    classifier = load_model("squeezenet1_1", weights=tmp_path / "squeezenet.safetensors")
    assert classifier.class_name(0) == "tench"
    assert classifier.preprocessing.crop == 224
    assert not classifier.module.training
    images = torch.randn(1, 3, 64, 64)
    assert torch.equal(classifier.module(images), model(images))


def test_a_fine_tuned_head_is_recognised(tmp_path: Path) -> None:
    torch.save(resnet18(3).state_dict(), tmp_path / "pets.pth")
    (tmp_path / "names.txt").write_text("cat\ndog\nhamster\n")
    classifier = load_model(
        "resnet18", weights=tmp_path / "pets.pth", classes=tmp_path / "names.txt"
    )
    assert classifier.module(torch.zeros(1, 3, 64, 64)).shape == (1, 3)
    assert classifier.class_index("hamster", torch.zeros(3)) == 2
    nameless = load_model("resnet18", weights=tmp_path / "pets.pth")
    assert nameless.class_name(2) == "class 2"


def test_a_fine_tuned_head_is_recognised_inside_a_larger_checkpoint(tmp_path: Path) -> None:
    saved = resnet18(3).state_dict()
    state = {f"net.{name}": tensor for name, tensor in saved.items()}
    torch.save({"state_dict": state | {"criterion.weight": torch.ones(3)}}, tmp_path / "a.ckpt")
    loaded = load_model("resnet18", weights=tmp_path / "a.ckpt").module.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in saved.items())


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache of weights and no network; returns the cache's folder."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.download_url_to_file", refuse)
    return tmp_path / "hub" / "checkpoints"


@pytest.mark.usefixtures("offline")
def test_weights_that_cannot_be_downloaded() -> None:
    with pytest.raises(WeightsError, match=r"cannot download the weights of resnet18 .*--weights"):
        load_model("resnet18")


PUBLISHED = [("resnet50:IMAGENET1K_V1", None), ("resnet50", Path("plans/IMAGENET1K_V1"))]


@pytest.mark.parametrize(("name", "weights"), PUBLISHED)
def test_published_weights_by_name(name: str, weights: Path | None, offline: Path) -> None:
    """They come from torchvision's cache; if that is empty, the message says what to put there."""
    said = rf"put resnet50-0676ba61\.pth into {offline}, or give"
    with pytest.raises(WeightsError, match=said):
        load_model(name, weights=weights)
    offline.mkdir(parents=True, exist_ok=True)
    model = import_torchvision().models.resnet50(weights=None)
    torch.save(model.state_dict(), offline / "resnet50-0676ba61.pth")
    classifier = load_model(name, weights=weights)
    assert classifier.preprocessing.resize == 256  # the second weights have 232
    assert torch.equal(classifier.module.fc.bias, model.fc.bias)


def test_weights_that_are_not_published(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no weights .* 'IMAGENET1K_V9'; did you mean"):
        load_model("resnet50:IMAGENET1K_V9")
    with pytest.raises(WeightsError, match="names its weights already"):
        load_model("resnet50:IMAGENET1K_V1", weights=tmp_path / "a.pth")


@pytest.mark.parametrize("name", ["squeezenet1_1", "shufflenet_v2_x2_0", "efficientnet_b0"])
def test_preprocessing_is_torchvisions(name: str) -> None:
    """Sizes of 256 and 232 before the crop; bilinear and bicubic; landscape, portrait, square."""
    preprocessing = untrained_model(name).preprocessing
    theirs = import_torchvision().models.get_model_weights(name).DEFAULT.transforms()
    for size in ((500, 333), (333, 501), (640, 427), (301, 300)):
        photo = Image.effect_noise(size, 60).convert("RGB")
        ours = preprocessing.tensor(preprocessing.view(photo))
        assert (ours - theirs(photo)).abs().max() < 1e-5
