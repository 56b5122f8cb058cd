"""torchvision's detectors and segmentations: exact, and with the boxes of torchvision itself."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dmbp
from dmbp.errors import ModelError
from dmbp.models import Classifier, load_model
from dmbp.models.torchvision_models import import_torchvision
from dmbp.models.torchvision_tasks import adapted
from dmbp.targets import Box, Region, TargetContext, find_boxes
from tests.tolerance import FLOAT64, relative

detection: Any = import_torchvision().models.detection
anchor_utils: Any = detection.anchor_utils

CLASSES, WIDTH = 4, 32  # FCOS normalises 32 groups of channels
SIZE = (40, 56)


class Pyramid(nn.Module):
    """Features at two scales."""

    out_channels = WIDTH

    def __init__(self) -> None:
        super().__init__()
        self.top = nn.Conv2d(3, WIDTH, 3, stride=8, padding=1)
        self.bottom = nn.Conv2d(WIDTH, WIDTH, 3, stride=2, padding=1)

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        top = self.top(images).relu()
        return OrderedDict(top=top, bottom=self.bottom(top).relu())


def anchors(ratios: tuple[float, ...]) -> Any:
    return anchor_utils.AnchorGenerator(((12,), (24,)), (ratios,) * 2)


def retinanet() -> nn.Module:
    generator = anchors((0.5, 1.0))
    return detection.RetinaNet(Pyramid(), CLASSES, anchor_generator=generator, min_size=40)


def fcos() -> nn.Module:
    return detection.FCOS(Pyramid(), CLASSES, anchor_generator=anchors((1.0,)), min_size=40)


def ssd() -> nn.Module:
    generator = anchor_utils.DefaultBoxGenerator([[2], [2]])
    head = detection.ssd.SSDHead([WIDTH] * 2, generator.num_anchors_per_location(), CLASSES)
    return detection.ssd.SSD(Pyramid(), generator, SIZE[::-1], CLASSES, head=head)


DETECTORS: Mapping[str, Callable[[], nn.Module]] = {
    "RetinaNet": retinanet,
    "FCOS": fcos,
    "SSD": ssd,
}


@cache
def detector(kind: str) -> tuple[Any, Classifier]:
    """One of torchvision's own, and the same as dmbp explains it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = DETECTORS[kind]().double().eval()
        for parameter in made.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.1)
    return made, adapted(Classifier(kind, made))


def images() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(1, 3, *SIZE, generator=generator, dtype=torch.float64)


@torch.no_grad()
def own_boxes(made: Any, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes and probabilities of all anchors, by torchvision's own coders."""
    multiple = made.transform.size_divisible
    sides = [-(-side // multiple) * multiple for side in SIZE]
    padded = torch.zeros(1, 3, *sides, dtype=inputs.dtype)
    padded[:, :, : SIZE[0], : SIZE[1]] = inputs
    features = list(made.backbone(padded).values())
    outputs = made.head(features)
    image_list = detection.image_list.ImageList(padded, [SIZE])
    (where,) = made.anchor_generator(image_list, features)
    logits, offsets = outputs["cls_logits"][0], outputs["bbox_regression"][0]
    if type(made).__name__ == "FCOS":
        likely = (logits.sigmoid() * outputs["bbox_ctrness"][0].sigmoid()).sqrt()
        return made.box_coder.decode(offsets, where), likely
    likely = logits.sigmoid() if type(made).__name__ == "RetinaNet" else logits.softmax(1)
    return made.box_coder.decode_single(offsets, where), likely


@pytest.mark.parametrize("kind", DETECTORS)
def test_boxes_and_probabilities_are_torchvisions(kind: str) -> None:
    made, found = detector(kind)
    layout = found.boxes
    assert layout is not None
    with torch.no_grad():
        outputs = found.module(images())[0]
    corners, likely = own_boxes(made, images())
    sides = torch.tensor([SIZE[1], SIZE[0]] * 2)
    clipped = corners.clamp(min=0).minimum(sides)
    assert relative(layout.corners(outputs, SIZE), clipped) <= FLOAT64
    if kind == "SSD":
        likely[:, 0] = 0  # the background
    assert relative(layout.probabilities(outputs), likely) <= FLOAT64
    strongest = find_boxes(outputs, SIZE, layout)[0]
    assert strongest.probability == pytest.approx(float(likely.max()))
    assert strongest.index == int(likely.amax(0).argmax())


@pytest.mark.parametrize("kind", DETECTORS)
def test_detectors_are_exact(kind: str) -> None:
    _, found = detector(kind)
    inputs = images()
    with torch.no_grad():
        outputs = found.module(inputs)[0]
    target = Box(0).bind(TargetContext(outputs, SIZE, details={"boxes": found.boxes}))
    d = dmbp.DMBP(found.module, preset="fast", iterations=2).explain(inputs, target=target)
    assert d.exactness <= FLOAT64
    assert relative(d.output, target(outputs)) <= FLOAT64
    assert d.attribution.abs().max() > 0
    several = found.module(torch.cat([inputs, inputs.flip(3)]))
    assert relative(several[:1].detach(), outputs[None]) <= FLOAT64


def test_photos_are_prepared_as_the_detector_does() -> None:
    """SSD squeezes them, the others limit both sides."""
    squeezed = detector("SSD")[1].preprocessing
    assert (squeezed.fit, squeezed.crop) == ("squeeze", SIZE)
    whole = detector("FCOS")[1].preprocessing
    assert (whole.fit, whole.crop, whole.longest) == ("whole", 40, 1333)
    assert whole.mean == (0.485, 0.456, 0.406)


@pytest.mark.parametrize("name", ["fasterrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn_v2"])
def test_detectors_with_two_stages_are_refused(name: str) -> None:
    with pytest.raises(ModelError, match=r"cuts regions out of its features .*: choose one that"):
        load_model(name)


def test_a_segmentation_by_name(tmp_path: Path) -> None:
    """Its file of weights may have an auxiliary head, and another number of classes."""
    own: Any = import_torchvision().models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=3
    )
    own.eval()
    torch.save(own.state_dict(), tmp_path / "seg.pth")
    found = load_model("lraspp_mobilenet_v3_large", weights=tmp_path / "seg.pth")
    assert (found.classes, found.preprocessing.fit, found.preprocessing.crop) == (
        None,
        "whole",
        520,
    )
    inputs = images().float()
    with torch.no_grad():
        expected = own(inputs)["out"]
        assert relative(found.module(inputs), expected) == 0
    d = dmbp.DMBP(found.module, preset="fast", iterations=1).explain(
        inputs, target=Region(1, box=(0, 0, 20, 20))
    )
    assert relative(d.output, expected[0, 1, :20, :20].mean()) <= 1e-4


DETECTOR_MODULE = """
from tests.models.test_torchvision_tasks import fcos as make
"""


def test_a_detector_of_a_factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_detector.py").write_text(DETECTOR_MODULE)
    found = load_model("my_detector:make")
    assert found.boxes == detector("FCOS")[1].boxes
