"""Models of ultralytics: refusals without the package, and exact boxes where it is installed."""

import importlib.util
import sys

import pytest
import torch
from torch import Tensor, nn

import dmbp
from dmbp.errors import ModelError
from dmbp.models import Classifier, load_model
from dmbp.models.ultralytics_models import CandidateBoxes, FirstOutput, adapted_ultralytics
from dmbp.targets import Box, TargetContext
from tests.tolerance import FLOAT64, relative

NEEDS_PACKAGE = pytest.mark.skipif(
    importlib.util.find_spec("ultralytics") is None, reason="ultralytics is not installed"
)


@pytest.mark.parametrize("name", ["yolov8n.pt", "yolov8n.yaml", "yolov8n"])
def test_a_file_that_is_not_trusted_is_not_opened(name: str) -> None:
    """Not even a `.yaml` file: ultralytics evaluates its `activation` as Python."""
    with pytest.raises(ModelError, match=rf"{name} is opened by ultralytics, .* --trust-model-"):
        load_model(f"ultralytics:{name}")


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ultralytics", None)
    with pytest.raises(ModelError, match="needs the package ultralytics: pip install ultralytics"):
        load_model("ultralytics:yolov8n.pt", trust_model_file=True)


class Nested(nn.Module):
    """Returns results as detectors of segments do: with coefficients, and with other tensors."""

    def forward(self, images: Tensor) -> tuple[tuple[Tensor, Tensor], dict[str, Tensor]]:
        rows = images.flatten(1)[:, :12].unflatten(1, (6, 2))
        return (rows, images), {"images": images}


def test_only_boxes_and_probabilities_are_taken() -> None:
    images = torch.rand(2, 3, 4, 4)
    rows = images.flatten(1)[:, :12].unflatten(1, (6, 2))
    assert torch.equal(FirstOutput(Nested())(images), rows)
    assert torch.equal(CandidateBoxes(Nested(), 5)(images), rows[:, :5])


def test_other_modules_remain_as_they_are() -> None:
    found = Classifier("mine", nn.Flatten())
    assert adapted_ultralytics(found) is found


@NEEDS_PACKAGE
def test_a_detector_is_exact() -> None:
    found = load_model("ultralytics:yolov8n.yaml", trust_model_file=True)
    assert (found.preprocessing.fit, found.preprocessing.crop) == ("letterbox", 640)
    model, images = found.module.double(), torch.rand(1, 3, 96, 64, dtype=torch.float64)
    for parameter in model.parameters():
        if parameter.dim() > 1 and parameter.requires_grad:
            nn.init.kaiming_normal_(parameter)  # its own initial weights hardly see the image
    with torch.no_grad():
        outputs = model(images)[0]
    target = Box(0).bind(TargetContext(outputs, (96, 64), details={"boxes": found.boxes}))
    d = dmbp.DMBP(model, preset="fast", iterations=1).explain(images, target=target)
    assert d.exactness <= FLOAT64
    assert relative(d.output, target(outputs)) <= FLOAT64
