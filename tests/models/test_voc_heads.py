"""Backbones with a VOC head, from real weights; and what is said where files are missing."""

from pathlib import Path

import pytest
import torch

from dmbp.errors import WeightsError
from dmbp.models import load_model


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
