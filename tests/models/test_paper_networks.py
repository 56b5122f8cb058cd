"""The paper's networks: from files laid out like TorchRay's, from real weights, from none."""

import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import dmbp
from dmbp.errors import WeightsError
from dmbp.models import load_model
from dmbp.models.paper_networks import caffe_resnet50, caffe_vgg16, keras_resnet50


def split_norms(module: nn.Module) -> dict[str, Tensor]:
    """Return a state dict as Caffe's: batch norms split into statistics and scale, input BGR."""
    found: dict[str, Tensor] = {}
    for key, value in module.state_dict().items():
        part = "0" if "running" in key or "num_batches" in key else "1"
        found[re.sub(r"(bn\d|downsample\.1)\.", rf"\1.{part}.", key)] = value.clone()
    found["conv1.weight"] = found["conv1.weight"].flip(1)
    return found


def without_dropout(module: nn.Module) -> dict[str, Tensor]:
    """Return a state dict as Caffe's: the classifier as convolutions 0, 2, 4, input BGR."""
    found: dict[str, Tensor] = {}
    for key, value in module.state_dict().items():
        key = key.replace("classifier.3", "classifier.2").replace("classifier.6", "classifier.4")
        is_first = key == "classifier.0.weight"
        if key.startswith("classifier") and value.dim() == 2:
            value = value.reshape(len(value), 512, 7, 7) if is_first else value[..., None, None]
        found[key] = value
    found["features.0.weight"] = found["features.0.weight"].flip(1)
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, nn.Module]]:
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    resnet, vgg = caffe_resnet50().eval(), caffe_vgg16().eval()
    torch.save(split_norms(resnet), folder / "resnet.pth.tar")
    torch.save(without_dropout(vgg), folder / "vgg.pth.tar")
    return {
        "resnet50-voc-caffe": (folder / "resnet.pth.tar", resnet),
        "vgg16-voc-caffe": (folder / "vgg.pth.tar", vgg),
    }


NAMES = ["resnet50-voc-caffe", "vgg16-voc-caffe"]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_gives_the_network_it_was_saved_from(
    name: str, files: dict[str, tuple[Path, nn.Module]]
) -> None:
    path, made = files[name]
    classifier = load_model(name, weights=path)
    assert classifier.activation == "sigmoid"
    assert classifier.classes is not None
    assert len(classifier.classes) == 20
    image = torch.rand(1, 3, 64, 80)
    with torch.no_grad():
        assert torch.equal(classifier.module(image), made(image))


def test_the_architecture_is_caffes() -> None:
    resnet = caffe_resnet50()
    assert resnet.conv1.bias is not None
    assert (resnet.layer3[0].conv1.stride, resnet.layer3[0].conv2.stride) == ((2, 2), (1, 1))
    assert resnet.maxpool(torch.zeros(1, 1, 112, 112)).shape[2:] == (56, 56)
    assert resnet.maxpool(torch.zeros(1, 1, 113, 114)).shape[2:] == (56, 57)
    assert caffe_vgg16().features[4](torch.zeros(1, 1, 7, 8)).shape[2:] == (4, 4)


def test_the_network_can_be_linearised(files: dict[str, tuple[Path, nn.Module]]) -> None:
    module = load_model(NAMES[0], weights=files[NAMES[0]][0]).module
    net = dmbp.linearize(module, torch.rand(1, 3, 67, 96), target=3)
    assert len(net.sites) == 49


def test_photos_are_kept_whole_and_scaled_to_255(
    files: dict[str, tuple[Path, nn.Module]],
) -> None:
    seen = load_model(NAMES[0], weights=files[NAMES[0]][0]).preprocessing
    view = seen.view(Image.new("RGB", (500, 400), (255, 0, 10)))
    assert view.size == (280, 224)
    colour = seen.tensor(view)[0, :, 5, 5]
    assert colour.tolist() == pytest.approx([255 - 123.68, -116.779, 10 - 103.939], abs=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_files_of_other_networks_are_refused(
    name: str, files: dict[str, tuple[Path, nn.Module]]
) -> None:
    with pytest.raises(WeightsError, match="give the file that TorchRay distributes"):
        load_model(name)
    other = files[NAMES[1 - NAMES.index(name)]][0]
    with pytest.raises(WeightsError, match=r"keys are missing, first '\w+\.[\w.]+'; \d+ are unexp"):
        load_model(name, weights=other)


def test_a_file_without_one_layer(tmp_path: Path, files: dict[str, tuple[Path, nn.Module]]) -> None:
    state = torch.load(files[NAMES[0]][0], weights_only=True)
    del state["conv1.bias"], state["fc.bias"]
    torch.save(state, tmp_path / "less.pth")
    with pytest.raises(WeightsError, match=r"2 keys are missing, first 'conv1\.bias'$"):
        load_model(NAMES[0], weights=tmp_path / "less.pth")


def test_keras_resnet50_needs_a_file() -> None:
    with pytest.raises(WeightsError, match="give a file with --weights"):
        load_model("resnet50-keras")
    module = keras_resnet50()
    assert module.layer2[0].conv1.stride == (2, 2)
    assert module.layer2[0].conv2.stride == (1, 1)


@pytest.mark.parametrize("name", ["resnet50-voc", "vgg16-voc"])
def test_real_weights(name: str, shared: Path) -> None:
    classifier = load_model(name, weights=shared / "models")
    assert classifier.activation == "sigmoid"
    assert classifier.classes is not None
    assert len(classifier.classes) == 20
    with torch.no_grad():
        assert classifier.module(torch.randn(1, 3, 64, 64)).shape == (1, 20)


@pytest.mark.parametrize("name", ["resnet50-voc", "vgg16-voc"])
def test_missing_files(name: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="give the folder of its backbone and head"):
        load_model(name)
    with pytest.raises(WeightsError, match="there is no weights file"):
        load_model(name, weights=tmp_path)
