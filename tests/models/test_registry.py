"""Models by name: the names that exist, and the errors for a name that does not."""

from pathlib import Path

import pytest

from dmbp.errors import ModelError, WeightsError
from dmbp.models import MODELS, is_architecture, load_model, model_names


def test_unknown_models_get_the_nearest_names() -> None:
    with pytest.raises(ModelError, match="no model 'resnet5'; did you mean 'resnet50'"):
        load_model("resnet5")


def test_every_name_is_listed_once() -> None:
    names = model_names()
    assert len(names) == len(set(names))
    assert set(MODELS) < set(names)
    assert "resnet50" in names
    assert "fcn_resnet50" not in names  # segments, does not classify


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
    with pytest.raises(WeightsError, match="cannot read class names from"):
        load_model("voc160", classes=tmp_path / "missing.txt")
