"""How photos are prepared for a file: options, TOML and JSON beside it, and their origins."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.export import Dim

from dmbp.errors import InputError, ModelError, WeightsError
from dmbp.models import Classifier, InputSettings, Preprocessing, load_model
from dmbp.models.classifier import ASSUMED, Fit
from dmbp.models.input_settings import settings_of
from dmbp.models.torchvision_models import import_torchvision
from tests.models.networks import export_onnx, small_network

CAFFE = InputSettings(scale=255, channels="bgr", mean=(104, 117, 123))


class ChannelMeans(nn.Module):
    """Returns the mean of each channel, so that outputs tell how the input was prepared."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3))


class ChannelMeansLast(nn.Module):
    """The same of images (batch, height, width, channels)."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((1, 2))


def save(model: nn.Module, path: Path, images: Tensor, dynamic: object = None) -> Path:
    torch.export.save(torch.export.export(model, (images,), dynamic_shapes=dynamic), path)
    return path


def outputs(classifier: Classifier, colour: tuple[int, int, int]) -> list[float]:
    seen = classifier.preprocessing
    return classifier.module(seen.tensor(seen.view(Image.new("RGB", (64, 64), colour))))[0].tolist()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (InputSettings(scale=255), [200, 100, 50]),
        (InputSettings(scale=255, channels="bgr"), [50, 100, 200]),
        (CAFFE, [50 - 104, 100 - 117, 200 - 123]),
        (InputSettings(mean=0.5, std=0.5), [2 * value / 255 - 1 for value in (200, 100, 50)]),
        (InputSettings(channels="bgr"), [(50 / 255 - 0.406) / 0.225, -0.285, 1.307]),
    ],
)
def test_values_that_the_network_gets(
    tmp_path: Path, settings: InputSettings, expected: list[float]
) -> None:
    path = save(ChannelMeans(), tmp_path / "net.pt2", torch.zeros(1, 3, 16, 16))
    found = outputs(load_model(str(path), inputs=settings), (200, 100, 50))
    assert found == pytest.approx(expected, abs=2e-3)


def test_a_rectangular_file_makes_rectangular_inputs(tmp_path: Path) -> None:
    found = load_model(str(save(small_network(), tmp_path / "a.pt2", torch.zeros(1, 3, 16, 24))))
    assert (found.preprocessing.crop, found.preprocessing.fit) == ((16, 24), "squeeze")
    assert (found.origins["size"], found.origins["mean"]) == ("the file", ASSUMED)
    inputs = found.preprocessing.tensor(found.preprocessing.view(Image.new("RGB", (90, 80))))
    assert inputs.shape == (1, 3, 16, 24)
    assert found.module(inputs).shape == (1, 3)
    square = load_model(str(save(small_network(), tmp_path / "b.pt2", torch.zeros(1, 3, 16, 16))))
    assert square.preprocessing == Preprocessing(resize=18, crop=16)


def test_a_size_that_the_file_leaves_open(tmp_path: Path) -> None:
    sizes = ({0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC},)
    path = save(ChannelMeans(), tmp_path / "any.pt2", torch.zeros(2, 3, 20, 24), sizes)
    assert load_model(str(path)).origins["size"] == ASSUMED
    found = load_model(str(path), inputs=InputSettings(size="48x192"))
    assert found.preprocessing.size == (48, 192)
    assert found.origins["size"] == "the options"
    fixed = save(small_network(), tmp_path / "fixed.pt2", torch.zeros(1, 3, 16, 16))
    with pytest.raises(ModelError, match=r"takes images of 16×16 pixels .*, not 48×192: leave out"):
        load_model(str(fixed), inputs=InputSettings(size=(48, 192)))


def test_channels_last(tmp_path: Path) -> None:
    path = save(ChannelMeansLast(), tmp_path / "net.pt2", torch.zeros(1, 16, 24, 3))
    found = load_model(str(path), inputs=InputSettings(layout="nhwc", scale=255))
    assert found.preprocessing.size == (16, 24)
    assert outputs(found, (200, 100, 50)) == pytest.approx([200, 100, 50])


def test_channels_last_in_onnx(tmp_path: Path) -> None:
    """The file's shape does not say that its only channel is the last."""
    pytest.importorskip("onnx")
    images = torch.zeros(1, 16, 24, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about itself
        torch.onnx.export(ChannelMeansLast(), (images,), tmp_path / "net.onnx", dynamo=False)
    (tmp_path / "net.toml").write_text('layout = "nhwc"\nscale = 255')
    found = load_model(str(tmp_path / "net.onnx"))
    assert found.preprocessing.size == (16, 24)
    assert outputs(found, (100, 100, 100)) == pytest.approx([100])


def test_options_go_before_the_toml_beside_the_file(tmp_path: Path) -> None:
    path = save(ChannelMeans(), tmp_path / "net.pt2", torch.zeros(1, 3, 16, 16))
    (tmp_path / "names.txt").write_text("red\ngreen\nblue\n")
    (tmp_path / "net.toml").write_text(
        'size = 16\nfit = "squeeze"\nmean = [104, 117, 123]\nscale = 255\nchannels = "bgr"\n'
        'interpolation = "bicubic"\nclasses = "names.txt"\n'
    )
    found = load_model(str(path), inputs=InputSettings(fit="crop", channels="rgb"))
    seen = found.preprocessing
    assert (seen.fit, seen.channels, seen.scale) == ("crop", "rgb", 255)
    assert (seen.mean, seen.std) == ((123, 117, 104), (1, 1, 1))  # reversed with the channels
    assert seen.interpolation == Image.Resampling.BICUBIC
    assert found.classes == ("red", "green", "blue")
    toml = dict.fromkeys(("size", "mean", "std", "scale", "interpolation", "classes"), "net.toml")
    assert found.origins == {**toml, "fit": "the options", "channels": "the options"}
    (tmp_path / "net.toml").write_text('classes = ["r", "g", "b"]')
    assert load_model(str(path)).classes == ("r", "g", "b")
    names = load_model(str(path), classes=tmp_path / "names.txt")
    assert (names.classes, names.origins["classes"]) == (("red", "green", "blue"), "the options")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("siz = 16", r"net\.toml takes no setting 'siz'; did you mean 'size'"),
        ("clases = []", r"takes no setting 'clases'; did you mean 'classes'"),
        ("size = 0", "'size' of .*net.toml must be a number of pixels, or height and width"),
        ("size = [16, 5000]", "each at most 4096, not 16×5000"),
        ("size = true", "must be a number of pixels"),
        ("mean = [1, 2]", "'mean' of .* must be one number, or three numbers"),
        ('std = ["a", 1, 1]', "'std' of .* must be one number, or three numbers"),
        ("std = 0", "std must be above zero in every channel"),
        ("mean = inf", "'mean' of .* must be one number"),
        ("scale = -1", "'scale' of .* must be a number above zero"),
        ('channels = "rbg"', "'channels' of .* must be \"rgb\" or \"bgr\", not 'rbg'"),
        ('layout = "nhcw"', "there is no layout 'nhcw'; did you mean"),
        ('fit = "squeezed"', "there is no fit 'squeezed'; did you mean 'squeeze'"),
        (
            "fit = 1",
            "'fit' of .* must be 'crop', .* 'whole', 'letterbox' or 'letterbox-corner', not 1",
        ),
        ('interpolation = "cubic"', "there is no interpolation 'cubic'; did you mean 'bicubic'"),
        ("classes = 3", "'classes' of .* must be a list of names, or the name of a text file"),
        ('classes = ""', "must be the name of a file beside it"),
        ('classes = "../names.txt"', "must be the name of a file beside it"),
        ('classes = "none.txt"', "there is no file of classes"),
        (f'classes = ["{"x" * 1001}"]', "item 1 of 'classes' of .* has 1,001 characters"),
        ("hold = {rate = true}", "'hold' of .* must be a table of numbers by name"),
        ("hold = 3", "'hold' of .* must be a table of numbers by name"),
        ('output = "y"', "net.pt2 is no ONNX file, so its inputs and outputs have no names"),
        ("size = ", r"net\.toml is not TOML"),
        (f"size = {'[' * 5000}", "nested too deeply"),
        ("size = [16, 24]", "takes images of 16×16 pixels .*, not 16×24"),
    ],
)
def test_a_wrong_toml_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = save(ChannelMeans(), tmp_path / "net.pt2", torch.zeros(1, 3, 16, 16))
    (tmp_path / "net.toml").write_text(text)
    with pytest.raises((InputError, ModelError, WeightsError), match=sentence) as caught:
        load_model(str(path))
    assert "\n" not in str(caught.value)


def test_a_toml_is_a_file_of_a_bounded_size(tmp_path: Path) -> None:
    path = save(ChannelMeans(), tmp_path / "net.pt2", torch.zeros(1, 3, 16, 16))
    (tmp_path / "net.toml").mkdir()
    with pytest.raises(ModelError, match="it is a folder, not a file of input settings"):
        load_model(str(path))
    (tmp_path / "net.toml").rmdir()
    with (tmp_path / "net.toml").open("wb") as file:
        file.truncate(2**24 + 1)
    with pytest.raises(ModelError, match="more than the 16,777,216 that a file of input settings"):
        load_model(str(path))


def test_numbers_for_grey_images(tmp_path: Path) -> None:
    path = save(ChannelMeans(), tmp_path / "net.pt2", torch.zeros(1, 1, 16, 16))
    assert load_model(str(path), inputs=InputSettings(mean=0.5, std=[0.25])).preprocessing.std == (
        0.25,
    )
    with pytest.raises(InputError, match="mean has 3 numbers, but the model takes grey images"):
        load_model(str(path), inputs=CAFFE)


def test_settings_of_any_model() -> None:
    found = load_model("voc160", inputs=InputSettings(size=(96, 128), fit="squeeze"))
    assert found.preprocessing.size == (96, 128)
    assert found.origins == {"size": "the options", "fit": "the options"}
    with pytest.raises(InputError, match="'size' of the input's settings must be a number"):
        InputSettings(size="224 x 224")


@pytest.mark.parametrize("fit", get_args(Fit))
def test_every_preprocessing_can_be_written_as_settings(fit: Any) -> None:
    seen = Preprocessing(80, 64, fit, (1, 2, 3), (4, 5, 6), Image.Resampling.BOX, 255.0, "bgr")
    seen = replace(seen, padding=7)
    assert settings_of(seen).change(Preprocessing()) == seen


TIMM: dict[str, Any] = {
    "architecture": "resnet10t",
    "label_names": ["red", "green", "blue"],
    "pretrained_cfg": {
        "input_size": [3, 16, 24],
        "interpolation": "bilinear",
        "crop_pct": 0.8,
        "crop_mode": "squash",
        "mean": [0.5, 0.5, 0.5],
        "std": [0.25, 0.25, 0.25],
    },
}


def test_timms_json_beside_a_file(tmp_path: Path) -> None:
    path = save(ChannelMeans(), tmp_path / "net.pt2", torch.zeros(1, 3, 16, 24))
    (tmp_path / "config.json").write_text(json.dumps(TIMM))
    found = load_model(str(path))
    assert found.preprocessing == Preprocessing(
        (20, 30), (16, 24), "squeeze-crop", (0.5,) * 3, (0.25,) * 3
    )
    assert found.classes == ("red", "green", "blue")
    assert {k: v for k, v in found.origins.items() if v != "config.json"} == {}
    other = save(ChannelMeans(), tmp_path / "other.pt2", torch.zeros(1, 3, 32, 32))
    larger = load_model(str(other))  # the file's size is the one it was exported for
    assert (larger.preprocessing.size, larger.origins["size"]) == ((32, 32), "the file")
    assert (larger.preprocessing.mean, larger.preprocessing.resize) == ((0.5,) * 3, 40)
    (tmp_path / "net.toml").write_text("mean = 0.25")
    assert load_model(str(path)).preprocessing.mean == (0.25,) * 3
    for wrong in ({"crop_mode": "border"}, {"mean": "half"}, {"crop_pct": 0}, {"input_size": 3}):
        table = {"pretrained_cfg": {**TIMM["pretrained_cfg"], **wrong}}
        (tmp_path / "config.json").write_text(json.dumps(table))
        with pytest.raises(ModelError, match=r"timm prepares photos for config\.json in a way"):
            load_model(str(path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json is not JSON"):
        load_model(str(path))


def test_hugging_faces_json_beside_a_file(tmp_path: Path) -> None:
    import_torchvision()
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("onnx")
    path = export_onnx(small_network(), tmp_path / "model.onnx", 32, dynamic=True)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    labels = {"0": "cat", "1": "dog", "2": "bird"}
    (tmp_path / "config.json").write_text(json.dumps({"id2label": labels, "model_type": "vit"}))
    found = load_model(str(path))
    assert (found.preprocessing.crop, found.preprocessing.fit) == (32, "squeeze")
    assert found.preprocessing.mean == (0.5,) * 3
    assert found.classes == ("cat", "dog", "bird")
    assert found.origins["mean"] == "preprocessor_config.json"
    assert found.origins["classes"] == "config.json"
    transformers.LevitImageProcessor().save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="is not used: LevitImageProcessor prepares photos in"):
        assert load_model(str(path)).origins["mean"] == ASSUMED
