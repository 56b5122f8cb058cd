"""timm's models by name: preprocessing, files of weights, and error messages."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from dmbp.errors import ModelError, WeightsError
from dmbp.models import load_model
from dmbp.models.timm_models import read_preprocessing
from dmbp.models.torchvision_models import import_torchvision

import_torchvision()
timm: Any = pytest.importorskip("timm")

SMALL = "resnet10t.c3_in1k"

# Crops of 0.875 (bilinear) and 0.95 (bicubic), a mean and std of one half, a squeezed photo.
PUBLISHED = [
    "resnet10t.c3_in1k",
    "resnet50.a1_in1k",
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    "vit_base_patch16_clip_quickgelu_224.openai",
    "eva02_tiny_patch14_336.mim_in22k_ft_in1k",
]


@pytest.mark.parametrize("name", PUBLISHED)
def test_preprocessing_is_timms(name: str) -> None:
    from timm.data import create_transform, resolve_data_config

    class Named(torch.nn.Module):
        pretrained_cfg = timm.get_pretrained_cfg(name).to_dict()

    photo = Image.effect_noise((500, 333), 60).convert("RGB")
    preprocessing = read_preprocessing(Named(), name)
    ours = preprocessing.tensor(preprocessing.view(photo))[0]
    theirs = create_transform(**resolve_data_config({}, model=Named()), is_training=False)(photo)
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < 1e-5


def test_weights_from_a_file(tmp_path: Path) -> None:
    model = timm.create_model(SMALL, pretrained=False).eval()
    save_file(model.state_dict(), tmp_path / "net.safetensors")
    classifier = load_model(f"timm:{SMALL}", weights=tmp_path / "net.safetensors")
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(classifier.module(images), model(images))
    assert classifier.class_name(0).startswith("tench")
    assert classifier.name == f"timm:{SMALL}"


def test_a_fine_tuned_head_is_recognised(tmp_path: Path) -> None:
    model = timm.create_model(SMALL, pretrained=False, num_classes=3)
    torch.save(model.state_dict(), tmp_path / "pets.pth")
    classifier = load_model(f"timm:{SMALL}", weights=tmp_path / "pets.pth")
    assert classifier.module(torch.zeros(1, 3, 64, 64)).shape == (1, 3)
    assert classifier.classes is None


def test_error_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise OSError("An error happened. Please check your connection")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(
        WeightsError, match=r"cannot download .* \(An error happened\); .*--weights"
    ):
        load_model(f"timm:{SMALL}")
    with pytest.raises(ModelError, match="timm has no model 'resnet5'; did you mean"):
        load_model("timm:resnet5")
    with pytest.raises(WeightsError, match="there is no weights file"):
        load_model(f"timm:{SMALL}", weights=tmp_path / "no.pth")
    monkeypatch.undo()
    torch.save({}, tmp_path / "empty.pth")
    with pytest.raises(ModelError, match=r"timm cannot make resnet50\.nothing: Invalid pretrained"):
        load_model("timm:resnet50.nothing", weights=tmp_path / "empty.pth")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModelError, match=r"needs the extra timm: pip install dmbp\[timm\]"):
        load_model(f"timm:{SMALL}")
