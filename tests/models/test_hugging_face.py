"""Image classifiers of `transformers`: exact, with their own labels and preprocessing."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

import dmbp
from dmbp.cli import app
from dmbp.errors import DMBPError, ModelError, WeightsError
from dmbp.models import InputSettings, hugging_face_classifier, load_model
from dmbp.models.classifier import ASSUMED
from dmbp.models.hugging_face import read_preprocessing
from dmbp.models.torchvision_models import import_torchvision
from dmbp.process import measure_peak
from tests.tolerance import FLOAT32, FLOAT64, relative

import_torchvision()  # transformers imports it, which may fail beside a CPU build of torch
transformers: Any = pytest.importorskip("transformers")

SIDE, CLASSES, TARGET = 32, 5, 3
LABELS = ("cat", "dog", "bird", "fish", "horse")

TOKENS: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "patch_size": 8,
    "image_size": SIDE,
}
MODELS: dict[str, dict[str, Any]] = {
    "ViT": TOKENS,
    "DeiT": TOKENS,
    "Beit": {**TOKENS, "use_relative_position_bias": True},
    "ResNet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2]},
    "ConvNext": {"hidden_sizes": [4, 8, 12, 16], "depths": [1, 1, 1, 1]},
    "Swin": {
        "image_size": SIDE,
        "patch_size": 2,
        "embed_dim": 8,
        "depths": [2, 1],
        "num_heads": [2, 2],
        "window_size": 4,
    },
    "MobileNetV2": {"image_size": SIDE, "depth_multiplier": 0.25},
}


def make_model(kind: str, **more: Any) -> nn.Module:
    """Return a tiny network whose weights are large enough for every part to matter."""
    config = getattr(transformers, f"{kind}Config")(**MODELS[kind], num_labels=CLASSES, **more)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, f"{kind}ForImageClassification")(config).eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_is_exact_and_its_terms_add_up(kind: str) -> None:
    model = make_model(kind).double()
    images = torch.randn(2, 3, SIDE, SIDE, dtype=torch.float64)
    explainer = dmbp.DMBP(model, iterations=3)
    d = explainer.explain(images, target=TARGET)
    with torch.no_grad():
        scores = model(images).logits
    assert relative(d.output, scores[:, TARGET]) <= FLOAT64
    assert d.exactness <= FLOAT64
    terms = d.positive_output + d.negative_output + d.nuisance_output
    assert relative(terms, d.output) <= FLOAT64
    maps = explainer.attribute(images, target=torch.tensor([TARGET, 0]))
    assert maps.shape == images.shape
    assert relative(maps[:1], d.attribution[:1]) <= FLOAT64
    assert maps.flatten(1).abs().amax(1).min() > 0


PROCESSORS: dict[str, Callable[[], Any]] = {
    "squeezed": lambda: transformers.ViTImageProcessor(),
    "squeezed, then cut": lambda: transformers.DeiTImageProcessor(),
    "cut": lambda: transformers.MobileNetV2ImageProcessor(),
    "ConvNeXt, large": lambda: transformers.ConvNextImageProcessor(),
    "ConvNeXt, small": lambda: transformers.ConvNextImageProcessor(size={"shortest_edge": 224}),
    "no normalisation": lambda: transformers.ViTImageProcessor(do_normalize=False),
    "rectangle": lambda: transformers.ViTImageProcessor(size={"height": 48, "width": 96}),
    "BGR": lambda: transformers.MobileViTImageProcessor(size={"shortest_edge": 288}),
    "0 to 255": lambda: transformers.ViTImageProcessor(do_rescale=False, image_mean=[9.0] * 3),
}


@pytest.mark.parametrize("case", PROCESSORS)
def test_photos_are_prepared_as_the_processor_does(case: str) -> None:
    """The photo is another one than the trial photo with which the settings are checked."""
    processor = PROCESSORS[case]()
    found = read_preprocessing(processor)
    noise = Image.effect_noise((31, 47), 90).convert("RGB")
    photo = noise.resize((310, 470), Image.Resampling.BICUBIC)
    theirs = processor(photo, return_tensors="pt")["pixel_values"]
    ours = found.tensor(found.view(photo))
    levels = 255 * (ours - theirs).abs() * torch.tensor(found.std).view(-1, 1, 1)
    assert float(levels.max()) <= 2.01  # two ways of rounding


@pytest.mark.parametrize("name", ["Levit", "MobileViT", "EfficientNet", "Swin2SR"])
def test_a_processor_with_rules_of_its_own_is_refused(name: str) -> None:
    processor = getattr(transformers, f"{name}ImageProcessor")()
    with pytest.raises(ModelError, match="in a way that dmbp does not support; give --size"):
        read_preprocessing(processor)


def test_labels_and_kinds_of_classes() -> None:
    processor = transformers.ViTImageProcessor(size={"height": SIDE, "width": SIDE})
    labels = dict(enumerate(["cat", "dog", "bird", "fish", "horse"]))
    named = hugging_face_classifier(make_model("ViT", id2label=labels), processor)
    assert named.classes == tuple(labels.values())
    assert named.activation == "softmax"
    assert (named.preprocessing.fit, named.preprocessing.crop) == ("squeeze", SIDE)
    several = make_model("ViT", problem_type="multi_label_classification")
    plain = hugging_face_classifier(several, processor, name="mine")
    assert (plain.name, plain.classes, plain.activation) == ("mine", None, "sigmoid")


FACTORY = """
from transformers import AutoImageProcessor, AutoModelForImageClassification

from dmbp.models import hugging_face_classifier

def make():
    model = AutoModelForImageClassification.from_pretrained("a-folder")
    return hugging_face_classifier(model, AutoImageProcessor.from_pretrained("a-folder"))

def bare():
    return AutoModelForImageClassification.from_pretrained("a-folder")
"""


def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    labels = dict(enumerate(["cat", "dog", "bird", "fish", "horse"]))
    make_model("ViT", id2label=labels).save_pretrained("a-folder")
    processor = transformers.ViTImageProcessor(size={"height": SIDE, "width": SIDE})
    processor.save_pretrained("a-folder")
    Path("hub_models.py").write_text(FACTORY)
    Image.effect_noise((60, 40), 90).convert("RGB").save("photo.jpg")
    # In a process of its own, because torchvision has already been imported in this one.
    command = [Path(sys.executable).with_name("dmbp"), "explain", "photo.jpg", "--iterations", "2"]
    options = ["--model", "hub_models:make", "--target", "fish"]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    record = json.loads(Path("dmbp-out/photo.json").read_text())
    assert record["targets"][0]["name"] == "fish"
    assert record["model"] == "a-folder"
    assert record["exactness"] <= 1e-4
    assert load_model("hub_models:bare").classes == tuple(labels.values())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that save_pretrained wrote."""
    folder = tmp_path_factory.mktemp("saved") / "a-folder"
    make_model("ViT", id2label=dict(enumerate(LABELS))).save_pretrained(folder)
    processor = transformers.ViTImageProcessor(size={"height": SIDE, "width": SIDE})
    processor.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder in the current one."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(saved, tmp_path / "a-folder"))


def change(folder: Path, file: str = "config.json", **values: Any) -> None:
    """Change settings in a JSON file."""
    table = json.loads((folder / file).read_text()) | values
    (folder / file).write_text(json.dumps(table))


@pytest.mark.parametrize("name", ["hf:./a-folder", "hf:a-folder", "a-folder", "./a-folder"])
def test_a_folder_by_name(folder: Path, name: str) -> None:
    found, images = load_model(name), torch.randn(2, 3, SIDE, SIDE)
    expected = make_model("ViT")
    assert relative(found.module(images).logits, expected(images).logits) <= FLOAT32
    assert found.classes == LABELS
    assert (found.preprocessing.crop, found.preprocessing.mean) == (SIDE, (0.5,) * 3)
    assert found.origins["mean"] == "preprocessor_config.json"
    assert found.name == f"hf:{name.removeprefix('hf:')}"
    changed = load_model(name, inputs=InputSettings(scale=255))
    assert (changed.preprocessing.mean, changed.preprocessing.scale) == ((0,) * 3, 255)


def test_names_of_models_go_before_folders(folder: Path) -> None:
    folder.rename("voc160")
    assert load_model("voc160").name == "voc160"
    assert load_model("./voc160").classes == LABELS


def test_a_folder_on_the_command_line(folder: Path) -> None:
    Image.effect_noise((60, 40), 90).convert("RGB").save("photo.jpg")
    arguments = ["explain", "photo.jpg", "--model", "hf:./a-folder", "--iterations", "2"]
    done = CliRunner().invoke(app, [*arguments, "--target", "fish", "--mean", "0.4"])
    assert done.exit_code == 0, done.output
    record = json.loads(Path("dmbp-out/photo.json").read_text())
    assert record["targets"][0]["name"] == "fish"
    assert record["model"] == "hf:./a-folder"
    assert record["preprocessing"]["mean"] == [0.4] * 3
    assert record["exactness"] <= 1e-4
    doctor = CliRunner().invoke(app, ["doctor", "a-folder"])
    assert doctor.exit_code == 0, doctor.output
    assert "preprocessor_config.json" in doctor.output


def test_weights_that_are_pickled_or_in_shards(folder: Path) -> None:
    images, expected = torch.randn(1, 3, SIDE, SIDE), make_model("ViT")
    (folder / "model.safetensors").unlink()
    state = expected.state_dict()
    torch.save(state, folder / "pytorch_model.bin")
    pickled = load_model("a-folder").module(images).logits
    (folder / "pytorch_model.bin").unlink()
    halves = list(state)[::2], list(state)[1::2]
    for number, keys in enumerate(halves):
        save_file({key: state[key] for key in keys}, folder / f"model-{number}.safetensors")
    files = {key: f"model-{n}.safetensors" for n, keys in enumerate(halves) for key in keys}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    shards = load_model("a-folder").module(images).logits
    for found in (pickled, shards):
        assert relative(found, expected(images).logits) <= FLOAT32
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    with pytest.raises(WeightsError, match="does not list files beside it"):
        load_model("a-folder")


class Touch:
    """Creates a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("code-was-run"),)


CODE = """
from pathlib import Path
Path("code-was-run").touch()
"""


def test_no_code_in_a_folder_is_run(folder: Path) -> None:
    """Neither pickled code, nor modules beside the config, nor kernels that the config names."""
    for name in ("mine", "processing"):
        (folder / f"{name}.py").write_text(CODE)
    own = {"AutoConfig": "mine.Config", "AutoModelForImageClassification": "mine.Model"}
    change(folder, auto_map=own, attn_implementation="someone/kernel")
    processor = {"AutoImageProcessor": "processing.Processor"}
    change(folder, "preprocessor_config.json", auto_map=processor)
    found = load_model("a-folder")
    assert type(found.module).__module__.startswith("transformers.")
    assert found.module.config._attn_implementation in ("sdpa", "eager")
    change(folder, model_type="mine")
    with pytest.raises(
        ModelError, match=r"model_type 'mine' \(it has code of its own, which is not"
    ):
        load_model("a-folder")
    change(folder, model_type="vit")
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Touch()}, folder / "pytorch_model.bin")
    with pytest.raises(WeightsError, match="holds Python objects, not only weights"):
        load_model("a-folder")
    assert not Path("code-was-run").exists()


def test_folders_that_cannot_be_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(sentence: str, error: type[DMBPError] = ModelError, **more: Any) -> None:
        with pytest.raises(error, match=sentence) as caught:
            load_model("hf:./a-folder", **more)
        assert "\n" not in str(caught.value)

    refused("has its weights beside its config: leave out", WeightsError, weights=Path("a.pth"))
    config = (folder / "config.json").read_text()
    for values, sentence in [
        ({"quantization_config": {"bits": 4}}, "is quantised: give the floating-point model"),
        (
            {"pretrained_cfg": {}, "architecture": "resnet18"},
            "give its architecture, timm:resnet18",
        ),
        ({"model_type": "bert"}, "is not an image classifier that transformers can build"),
        ({"model_type": "nothing"}, "is not a model of the installed transformers"),
    ]:
        change(folder, **values)
        refused(sentence)
        (folder / "config.json").write_text(config)
    change(folder, hidden_size=32)
    refused("the weights of ./a-folder do not fit its config.json", WeightsError)
    (folder / "config.json").write_text(config)
    change(folder, architectures=[["ViTForImageClassification"]])
    assert load_model("hf:./a-folder").classes == LABELS
    (folder / "config.json").write_text(config)
    weights = load_file(folder / "model.safetensors")
    save_file(
        {key: tensor for key, tensor in weights.items() if "classifier" not in key},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    refused("lack 2 parameters of an image classifier, first 'classifier.bias'", WeightsError)
    (folder / "model.safetensors").unlink()
    refused("has no weights of PyTorch: there is neither model.safetensors", WeightsError)
    index = folder / "model.safetensors.index.json"
    for shard in ("", "../a.safetensors"):
        index.write_text(json.dumps({"weight_map": {"weight": shard}}))
        refused("index.json does not list files beside it", WeightsError)
    (folder / "config.json").write_text("[]")
    refused("config.json is not a JSON file with settings")
    (folder / "config.json").unlink()
    refused("is not a folder with a model: it has no config.json")
    monkeypatch.setitem(sys.modules, "transformers", None)
    (folder / "config.json").write_text(config)
    refused(r"needs the extra transformers: pip install dmbp\[transformers\]")


def test_a_folder_without_a_processor_or_with_an_unusual_one(folder: Path) -> None:
    transformers.LevitImageProcessor().save_pretrained(folder)
    with pytest.raises(ModelError, match="give --size, --mean and --std"):
        load_model("a-folder")
    stated = InputSettings(size=SIDE, mean=0.5, std=0.5)
    assert load_model("a-folder", inputs=stated).preprocessing.size == (SIDE, SIDE)
    (folder / "preprocessor_config.json").unlink()
    with pytest.warns(UserWarning, match=r"has no preprocessor_config\.json: .* as for ImageNet"):
        found = load_model("a-folder")
    assert (found.preprocessing.crop, found.origins["mean"]) == (SIDE, ASSUMED)
    assert found.classes == LABELS


def test_the_hub_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="hub: it cannot be reached, and the model was not down"):
        load_model("hf:someone/no-such-model")
    with pytest.raises(ModelError, match="hub: that is not a name of a model"):
        load_model("hf:no name")
    with pytest.raises(ModelError, match="hf: needs the name of a model"):
        load_model("hf:")


def test_a_model_of_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickled weights are asked for only if there are no others."""
    asked: list[list[str]] = []

    def download(name: str, *, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    found = load_model("hf:someone/model")
    assert (found.name, found.classes) == ("hf:someone/model", LABELS)
    assert len(asked) == 1
    assert not any(name.endswith((".py", ".bin")) for name in asked[0])
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    load_model("hf:someone/model")
    assert len(asked) == 3
    assert "pytorch_model.bin" in asked[2]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"intermediate_size": 10**10}, "do not fit its config.json, which describes"),
        ({"image_size": 10**7}, "do not fit its config.json, which describes"),
        ({"num_hidden_layers": 10**6}, "says num_hidden_layers 1000000, and 1,000 are the most"),
        ({"depths": [600, 600]}, "says depths [600, 600], and 1,000 are the most"),
    ],
)
def test_a_config_that_describes_terabytes_is_refused_at_once(
    folder: Path, values: dict[str, Any], sentence: str
) -> None:
    change(folder, **values)

    def load() -> None:
        with pytest.raises(DMBPError, match=re.escape(sentence)):
            load_model("./a-folder")

    peak = measure_peak(load, torch.device("cpu"))
    assert peak is None or peak.bytes < 2**29
