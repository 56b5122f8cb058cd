"""Models by name, from a file, from a user's own module; and all the ways that goes wrong."""

import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from dmbp.errors import InputError, ModelError, TargetError, WeightsError
from dmbp.models import Classifier, Preprocessing, load_model, model_names
from dmbp.models.paper_networks import keras_resnet50
from dmbp.models.torchvision_models import import_torchvision


def squeezenet(classes: int = 1000) -> nn.Module:
    return import_torchvision().models.squeezenet1_1(weights=None, num_classes=classes)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "squeezenet.safetensors"
    save_file(squeezenet().state_dict(), path)
    return path


def test_weights_from_a_file(weights: Path) -> None:
    classifier = load_model("squeezenet1_1", weights=weights)
    assert classifier.class_name(0) == "tench"
    assert classifier.preprocessing.crop == 224
    assert not classifier.module.training


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"state_dict": s}, lambda s: {"model": s}])
def test_checkpoints_in_their_usual_wrappings(tmp_path: Path, wrap: object) -> None:
    for prefix in ("", "module.", "model.", "model._orig_mod.", "_orig_mod.module."):
        state = {prefix + name: tensor for name, tensor in squeezenet().state_dict().items()}
        torch.save(wrap(state), tmp_path / "a.pth")
        load_model("squeezenet1_1", weights=tmp_path / "a.pth")


def test_a_fine_tuned_head_is_recognised(tmp_path: Path) -> None:
    model = import_torchvision().models.resnet18(weights=None, num_classes=3)
    torch.save(model.state_dict(), tmp_path / "pets.pth")
    (tmp_path / "names.txt").write_text("cat\ndog\nhamster\n")
    classifier = load_model(
        "resnet18", weights=tmp_path / "pets.pth", classes=tmp_path / "names.txt"
    )
    assert classifier.module(torch.zeros(1, 3, 64, 64)).shape == (1, 3)
    assert classifier.class_index("hamster", torch.zeros(3)) == 2
    nameless = load_model("resnet18", weights=tmp_path / "pets.pth")
    assert nameless.class_name(2) == "class 2"


@pytest.mark.parametrize("prefix", ["net.", "model.", "encoder.backbone."])
def test_a_network_that_is_part_of_another(tmp_path: Path, prefix: str) -> None:
    """Under one prefix, beside the weights of a loss; the head is recognised there, too."""
    model = import_torchvision().models.resnet18(weights=None, num_classes=3)
    state = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    torch.save({"state_dict": state | {"criterion.weight": torch.ones(3)}}, tmp_path / "a.ckpt")
    loaded = load_model("resnet18", weights=tmp_path / "a.ckpt").module.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in model.state_dict().items())
    twice = state | {f"average.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save(twice, tmp_path / "two.ckpt")
    with pytest.raises(WeightsError, match="does not fit"):  # which of both is meant?
        load_model("resnet18", weights=tmp_path / "two.ckpt")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"crop": (224, 160)}, "crop is a number of pixels"),
        ({"resize": -5}, "resize is a number of pixels"),
        ({"interpolation": "bicubic"}, "one of Pillow's"),
        ({"std": (0.0, 0.0, 0.0)}, "more than zero"),
        ({"mean": "half"}, "a number for each channel"),
    ],
)
def test_preprocessing_that_cannot_be(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Preprocessing(**given)


def test_means_may_be_tensors() -> None:
    assert Preprocessing(mean=torch.tensor([0.5, 0.5, 0.25])).mean == (0.5, 0.5, 0.25)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"classes": {0: "dog", 1: "cat"}}, "classes are a list of names"),
        ({"classes": (1, 2)}, "classes are a list of names"),
        ({"preprocessing": ((0.5,) * 3,)}, "'preprocessing' of a Classifier is a Preprocessing"),
        ({"module": "resnet18"}, "'module' of a Classifier is a module, not a str"),
    ],
)
def test_classifiers_that_cannot_be(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Classifier(**({"name": "mine", "module": nn.Linear(2, 2)} | given))


def test_two_names_for_a_yes_or_no() -> None:
    with pytest.raises(TargetError, match="name what yes stands for"):
        Classifier("mine", nn.Linear(2, 1), classes=("cat", "dog")).check_classes(torch.zeros(1))


def test_weights_of_another_architecture(weights: Path) -> None:
    with pytest.raises(WeightsError) as caught:
        load_model("resnet18", weights=weights)
    assert "missing, first 'conv1.weight'" in str(caught.value)
    assert "unexpected, first 'classifier.1.bias'" in str(caught.value)


def test_weights_of_another_shape(tmp_path: Path) -> None:
    state = squeezenet().state_dict()
    state["features.0.weight"] = torch.zeros(64, 1, 3, 3)
    save_file(state, tmp_path / "grey.safetensors")
    with pytest.raises(WeightsError, match=r"'features.0.weight' is \(64, 1, 3, 3\)"):
        load_model("squeezenet1_1", weights=tmp_path / "grey.safetensors")


def test_files_that_hold_no_weights(tmp_path: Path) -> None:
    (tmp_path / "text.pth").write_text("hello")
    (tmp_path / "text.safetensors").write_text("hello")
    Image.new("RGB", (50, 50)).save(tmp_path / "photo.pth", "JPEG")
    torch.save(squeezenet(), tmp_path / "pickled.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with zipfile.ZipFile(tmp_path / "script.pth", "w") as archive:  # as torch.jit.save makes them
        archive.writestr("script/constants.pkl", "")
        archive.writestr("script/version", "3")
    for name, sentence in [
        ("missing.pth", "there is no weights file"),
        ("text.pth", "not a file of weights"),
        ("photo.pth", "not a file of weights"),
        ("text.safetensors", "not a file of weights"),
        (".", "is a folder"),
        ("pickled.pth", "holds Python objects"),
        ("list.pth", "holds no state dict"),
        ("script.pth", "is a TorchScript program, not a file of weights; save those with"),
    ]:
        with pytest.raises(WeightsError, match=sentence):
            load_model("squeezenet1_1", weights=tmp_path / name)


def test_unknown_models_get_the_nearest_names() -> None:
    with pytest.raises(ModelError, match="no model 'resnet5'; did you mean 'resnet50'"):
        load_model("resnet5")
    assert "resnet50-keras" in model_names()
    assert "fcn_resnet50" not in model_names()


def test_weights_that_cannot_be_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def offline(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.download_url_to_file", offline)
    with pytest.raises(WeightsError, match=r"cannot download the weights of resnet18 .*--weights"):
        load_model("resnet18")


PUBLISHED = [("resnet50:IMAGENET1K_V1", None), ("resnet50", Path("plans/IMAGENET1K_V1"))]


@pytest.mark.parametrize(("name", "weights"), PUBLISHED)
def test_published_weights_by_name(
    name: str, weights: Path | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By torchvision's own name, from its cache; where that is empty, what to put there."""

    def offline(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.download_url_to_file", offline)
    said = rf"put resnet50-0676ba61\.pth into {tmp_path}/hub/checkpoints, or give"
    with pytest.raises(WeightsError, match=said):
        load_model(name, weights=weights)
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True, exist_ok=True)
    model = import_torchvision().models.resnet50(weights=None)
    torch.save(model.state_dict(), tmp_path / "hub" / "checkpoints" / "resnet50-0676ba61.pth")
    classifier = load_model(name, weights=weights)
    assert classifier.preprocessing.resize == 256  # the second weights have 232
    assert torch.equal(classifier.module.fc.bias, model.fc.bias)


def test_weights_that_are_not_published(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no weights .* 'IMAGENET1K_V9'; did you mean"):
        load_model("resnet50:IMAGENET1K_V9")
    with pytest.raises(WeightsError, match="names its weights already"):
        load_model("resnet50:IMAGENET1K_V1", weights=tmp_path / "a.pth")


def test_keras_resnet50_needs_a_file() -> None:
    with pytest.raises(WeightsError, match="give a file with --weights"):
        load_model("resnet50-keras")
    module = keras_resnet50()
    assert module.layer2[0].conv1.stride == (2, 2)
    assert module.layer2[0].conv2.stride == (1, 1)


FACTORY = """
from torch import nn
from dmbp.models import Classifier, Preprocessing
def plain(): return nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
def full(): return Classifier("mine", nn.Linear(2, 2), Preprocessing(32, 32), ("yes", "no"))
def wrong(): return "a string"
def broken(): raise KeyError("path")
def leaving(): raise SystemExit(3)
def stretched(): return Classifier("mine", nn.Linear(2, 2), Preprocessing(fit="stretch"))
def four(): return Classifier("mine", nn.Linear(2, 2), Preprocessing(mean=(0.5,) * 4))
def short(): return Classifier("mine", nn.Linear(2, 2), Preprocessing(std=(0.5,)))
number = 3
"""


def test_factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "her_models.py").write_text(FACTORY)
    (tmp_path / "her_bug.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert isinstance(load_model("her_models:plain").module, nn.Module)
    assert load_model("her_models:full").classes == ("yes", "no")
    for name, sentence in [
        ("her_models:wrong", "returned a str, not an nn.Module"),
        ("her_models:broken", "raised KeyError: 'path'"),
        ("her_models:leaving", "raised SystemExit: 3"),
        ("her_models:stretched", "there is no fit 'stretch'; there are crop, squeeze"),
        ("her_models:four", "three numbers each, or one for grey, not 4 and 3"),
        ("her_models:short", "three numbers each, or one for grey, not 3 and 1"),
        ("her_models:none", "has no function 'none'"),
        ("her_models:number", "has no function 'number'"),
        ("her_modls:plain", "cannot import 'her_modls'"),
        ("her_bug:plain", "raised ZeroDivisionError"),
        (":plain", "not of the form"),
        ("my_nets.py:plain", "names a file; write the module's name, my_nets:plain"),
        ("./my_nets.py:plain", "names a file; write the module's name, my_nets:plain"),
        ("./my_nets:plain", "names a file; write the module's name, my_nets:plain"),
        ("my/nets.py:plain", "write the module's name, my.nets:plain"),
        ("../my_nets.py:plain", "write the module's name in the folder .., my_nets:plain"),
    ]:
        with pytest.raises(ModelError, match=sentence):
            load_model(name)


CLASSIFIER = Classifier(
    "pets", nn.Identity(), classes=("tabby cat", "tiger cat", "goldfish", "sea-horse")
)


@pytest.mark.parametrize(
    ("text", "index"),
    [("0", 0), ("goldfish", 2), ("Goldfish ", 2), ("cat", 1), ("tabby", 0), ("horse", 3)],
)
def test_classes_by_number_name_or_word(text: str, index: int) -> None:
    assert CLASSIFIER.class_index(text, torch.tensor([1.0, 2.0, 0.0, 0.0])) == index


def test_classes_that_do_not_exist() -> None:
    outputs = torch.zeros(4)
    for text, sentence in [
        ("goldfsh", "no class 'goldfsh'; did you mean 'goldfish'"),
        ("zebra", "no class 'zebra'; there are tabby cat"),
        ("4", "class 4 is out of range: the model has classes 0 to 3"),
        ("-1", "out of range"),
        ("²", "no class '²'"),
    ]:
        with pytest.raises(TargetError, match=sentence):
            CLASSIFIER.class_index(text, outputs)
    with pytest.raises(TargetError, match="no names"):
        Classifier("x", nn.Identity()).class_index("cat", outputs)


def test_a_single_output_is_a_yes_or_no() -> None:
    assert Classifier("x", nn.Identity()).probabilities(torch.tensor([-0.5])).item() < 0.5


@pytest.mark.parametrize("size", [(640, 480), (20, 300), (224, 224), (17, 17)])
def test_preprocessing_sees_the_centre(size: tuple[int, int]) -> None:
    preprocessing = Preprocessing()
    view = preprocessing.view(Image.new("RGB", size, (255, 0, 0)))
    tensor = preprocessing.tensor(view)
    assert view.size == (224, 224)
    assert tensor.shape == (1, 3, 224, 224)
    assert tensor[0, 0, 0, 0] == pytest.approx((1 - 0.485) / 0.229)


@pytest.mark.parametrize("size", [(500, 333), (333, 501), (640, 427), (301, 300)])
def test_preprocessing_is_torchvisions(size: tuple[int, int]) -> None:
    models = import_torchvision().models
    photo = Image.effect_noise(size, 60).convert("RGB")
    weights = models.ResNet50_Weights.IMAGENET1K_V1
    from dmbp.models.torchvision_models import _preprocessing

    preprocessing = _preprocessing(weights)
    ours = preprocessing.tensor(preprocessing.view(photo))
    assert (ours - weights.transforms()(photo)).abs().max() < 1e-5
