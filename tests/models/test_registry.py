"""Models by name: the names that exist, and the errors for a name that does not."""

from pathlib import Path

import pytest

from dmbp.errors import ModelError, WeightsError
from dmbp.models import MODELS, is_architecture, load_model, model_names
from dmbp.models.text_files import read_classes


def test_unknown_models_get_the_nearest_names() -> None:
    with pytest.raises(ModelError, match="no model 'resnet5'; did you mean 'resnet50'"):
        load_model("resnet5")


def test_every_name_is_listed_once() -> None:
    names = model_names()
    assert len(names) == len(set(names))
    assert set(MODELS) < set(names)
    assert "resnet50" in names
    assert {"fcn_resnet50", "ssdlite320_mobilenet_v3_large"} < set(names)
    assert not any("rcnn" in name for name in names)  # two stages


@pytest.mark.parametrize(
    ("name", "expected"),
    [("resnet50", True), ("timm:resnet50", True), ("voc160", False), ("net.onnx", False)],
)
def test_architectures_are_those_of_torchvision_and_timm(name: str, expected: bool) -> None:
    assert is_architecture(name) is expected


def test_a_file_of_weights_is_not_a_model() -> None:
    with pytest.raises(ModelError, match=r"does not say which network .* --weights pets\.pth"):
        load_model("pets.pth")


def test_class_names_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="there is no file of classes"):
        load_model("voc160", classes=tmp_path / "missing.txt")


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name(name: str) -> None:
    with pytest.raises(ModelError, match="the model's name is empty; give one, or none at all"):
        load_model(name)


def test_class_names_are_printable_and_short(tmp_path: Path) -> None:
    path = tmp_path / "classes.txt"
    path.write_text("a\x1b[31mb\ncafé\u00a0au lait\n")
    assert read_classes(path) == ("a\\x1b[31mb", "café\u00a0au lait")
    path.write_text("cat\n" + "x" * 2000)
    with pytest.raises(WeightsError, match=r"line 2 of .* has 2,000 characters, which is no class"):
        read_classes(path)
    with pytest.raises(WeightsError, match="it is a device, not a file of classes"):
        read_classes(Path("/dev/zero"))


def test_a_file_that_is_no_model_is_named_as_one(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(ModelError, match=r"this file is none: models end in \.pt2"):
        load_model(str(path))
    path.unlink()
    with pytest.raises(ModelError, match=r"there is no model .*notes\.txt'; there are"):
        load_model(str(path))
