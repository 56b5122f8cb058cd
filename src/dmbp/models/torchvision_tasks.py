"""torchvision's detectors and segmentations, as models that return one tensor for each image.

    SSD, SSDlite, RetinaNet, FCOS     boxes before suppression     `DetectorHeads`
    FCN, DeepLab, LR-ASPP             a map of scores              `SegmentationMap`

Detectors of torchvision return lists of boxes that depend on thresholds and suppression. Here they
return logits and boxes of all anchors, and `Classifier.boxes` knows how to read them. Faster R-CNN
and its relatives are refused: they cut regions out of their features for boxes that they choose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dmbp.errors import ModelError
from dmbp.models.classifier import Classifier, Preprocessing
from dmbp.targets import CornerBoxes

TWO_STAGES = ("FasterRCNN", "MaskRCNN", "KeypointRCNN")

ONE_STAGE_HINT = (
    "choose one that scores all places at once, such as ssdlite320_mobilenet_v3_large, "
    "ssd300_vgg16, retinanet_resnet50_fpn_v2 or fcos_resnet50_fpn"
)


def refuse_two_stages(name: str) -> None:
    """Raise a `ModelError` for the name of a detector with two stages."""
    if "rcnn" in name.lower():
        raise ModelError(
            f"{name} cuts regions out of its features for boxes that it chooses first, for which "
            f"there is no linear network: {ONE_STAGE_HINT}"
        )


class SegmentationMap(nn.Module):
    """Returns the map of a segmentation's scores, without that of its auxiliary head."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of a batch of images, (images, classes, height, width)."""
        return self.model(images)["out"]


class DetectorHeads(nn.Module):
    """Returns logits and boxes of all anchors: (images, anchors, logits + 4).

    Boxes are left, top, right and bottom in pixels. FCOS's logit of an anchor's being in the middle
    of its box comes after the logits of the classes. Anchors depend on the size of the images
    alone; they are computed when the size is first met.
    """

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector: Any = detector
        self._anchors: dict[tuple[int, ...], Tensor] = {}

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs of a batch of images, which are not normalised again."""
        multiple = int(self.detector.transform.size_divisible)
        height, width = images.shape[-2:]
        padded = functional.pad(images, (0, -width % multiple, 0, -height % multiple))
        found: Any = self.detector.backbone(padded)
        features: list[Tensor] = [found] if isinstance(found, Tensor) else list(found.values())
        outputs: Mapping[str, Tensor] = self.detector.head(features)
        numbers = [outputs[key] for key in ("cls_logits", "bbox_ctrness") if key in outputs]
        anchors = self._anchors_of(padded, features).to(padded)
        return torch.cat([*numbers, self._decoded(outputs["bbox_regression"], anchors)], -1)

    def _anchors_of(self, images: Tensor, features: list[Tensor]) -> Tensor:
        """Return the corners of all anchors, (anchors, 4)."""
        size = tuple(images.shape[-2:])
        if size not in self._anchors:
            from torchvision.models.detection.image_list import ImageList

            only: Any = ImageList(images[:1], [(size[0], size[1])])
            found: list[Tensor] = self.detector.anchor_generator(only, [k[:1] for k in features])
            self._anchors[size] = found[0].detach()
        return self._anchors[size]

    def _decoded(self, offsets: Tensor, anchors: Tensor) -> Tensor:
        """Return boxes (images, anchors, 4) from what the head says about each anchor."""
        coder = self.detector.box_coder
        sides = anchors[:, 2:] - anchors[:, :2]
        middle = anchors[:, :2] + sides / 2
        if not hasattr(coder, "weights"):  # FCOS: distances from the middle to each side
            away = offsets * sides.repeat(1, 2) if coder.normalize_by_size else offsets
            return torch.cat([middle - away[..., :2], middle + away[..., 2:]], -1)
        offsets = offsets / torch.tensor(coder.weights).to(offsets)
        middle = middle + offsets[..., :2] * sides
        half = offsets[..., 2:].clamp(max=coder.bbox_xform_clip).exp() * sides / 2
        return torch.cat([middle - half, middle + half], -1)


def is_detector(module: nn.Module) -> bool:
    """Return whether a module is one of torchvision's detectors."""
    return type(module).__name__ in LAYOUTS


def _read_transform(detector: Any) -> Preprocessing:
    """Return how a detector prepares photos itself."""
    transform = detector.transform
    colours = Preprocessing(mean=tuple(transform.image_mean), std=tuple(transform.image_std))
    if transform.fixed_size is not None:
        width, height = transform.fixed_size
        return replace(colours, crop=(height, width), fit="squeeze")
    crop, longest = int(transform.min_size[-1]), int(transform.max_size)
    return replace(colours, crop=crop, fit="whole", longest=longest)


def _detector(classifier: Classifier) -> Classifier:
    detector: Any = classifier.module
    layout = LAYOUTS[type(detector).__name__]
    return replace(
        classifier,
        module=DetectorHeads(detector).eval(),
        preprocessing=_read_transform(detector),
        boxes=layout,
    )


def _segmentation(classifier: Classifier) -> Classifier:
    return replace(classifier, module=SegmentationMap(classifier.module).eval())


LAYOUTS: Mapping[str, CornerBoxes] = {
    "SSD": CornerBoxes(has_background=True),
    "RetinaNet": CornerBoxes(),
    "FCOS": CornerBoxes(has_centre=True),
}
"""Where the outputs of each detector hold boxes and scores."""

TASKS: Mapping[str, Callable[[Classifier], Classifier]] = {
    **dict.fromkeys(LAYOUTS, _detector),
    **dict.fromkeys(("FCN", "DeepLabV3", "LRASPP"), _segmentation),
}
"""How a module of torchvision is adapted, by the name of its class."""


def adapted(classifier: Classifier) -> Classifier:
    """Return a classifier whose module returns one tensor for each image.

    Detectors and segmentations of torchvision are wrapped; other modules remain as they are.

    Raises:
        ModelError: If it is a detector with two stages.
    """
    kind = type(classifier.module)
    if not kind.__module__.startswith("torchvision."):
        return classifier
    if kind.__name__ in TWO_STAGES:
        refuse_two_stages(kind.__name__)
    adapt = TASKS.get(kind.__name__)
    return classifier if adapt is None else adapt(classifier)
