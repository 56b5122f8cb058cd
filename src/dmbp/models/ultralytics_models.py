"""Loads models of the package `ultralytics`, where it is installed: `ultralytics:yolov8n.pt`.

dmbp contains nothing of that package, whose licence is the AGPL. Its detectors return the boxes and
probabilities of all candidates, from which its own post-processing would select; dmbp takes them
before that. Of models of segments, poses and rotated boxes, the boxes are explained, unrotated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from dmbp.errors import ModelError, first_line
from dmbp.files import shown
from dmbp.models.classifier import Classifier, Preprocessing
from dmbp.models.torchvision_models import import_torchvision
from dmbp.process import silence_logging, silence_output
from dmbp.targets import YoloBoxes

PREFIX = "ultralytics"

STRIDE = 32
"""The largest stride of the grids on which candidates lie; the input's side is a multiple of it."""

BOXES = YoloBoxes((), is_transposed=True)
"""Boxes in pixels and probabilities, (4 + classes, candidates)."""


def ultralytics_classifier(name: str, *, trust: bool) -> Classifier:
    """Return a model of `ultralytics`.

    Args:
        name: A name or file that its class `YOLO` takes, such as yolov8n.pt.
        trust: Let it open its file, which may run any code: it unpickles weights and evaluates
            parts of a `.yaml` file as Python.

    Raises:
        ModelError: If the package is not installed, the file is not trusted, or there is no such
            model.
    """
    if not trust:
        raise ModelError(
            f"{shown(name)} is opened by {PREFIX}, which runs what was pickled or written in it; "
            "if you trust whoever made the file, --trust-model-file opens it"
        )
    import_torchvision()  # its own import would fail with a CPU build of torch
    try:
        package: Any = import_module(PREFIX)
    except ImportError as error:
        raise ModelError(
            f"{PREFIX}:{shown(name)} needs the package {PREFIX}: pip install {PREFIX}"
        ) from error
    try:
        with silence_logging(), silence_output():
            made = package.YOLO(name)
            module: nn.Module = made.model.float()
    except Exception as error:  # it raises almost anything for a name that it does not know
        raise ModelError(
            f"{PREFIX} cannot load {shown(name)!r}: {' '.join(first_line(error).split())[:150]}"
        ) from error
    return adapted_ultralytics(Classifier(f"{PREFIX}:{name}", module))


class FirstOutput(nn.Module):
    """Returns the first tensor of what a model returns: its results, before others for training."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs of a batch of images."""
        returned: Any = self.model(images)
        while not isinstance(returned, Tensor):
            returned = returned[0]
        return returned


class CandidateBoxes(FirstOutput):
    """Returns the boxes and probabilities of all candidates alone, (4 + classes, candidates)."""

    def __init__(self, model: nn.Module, count: int) -> None:
        super().__init__(model)
        self._count = count

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs of a batch of images."""
        return super().forward(images)[:, : self._count]


def adapted_ultralytics(classifier: Classifier) -> Classifier:
    """Return a classifier whose module is a detector of `ultralytics` as one of boxes.

    Other modules remain as they are.

    Raises:
        ModelError: If the network itself selects boxes.
    """
    module: Any = classifier.module
    if not type(module).__module__.startswith(f"{PREFIX}."):
        return classifier
    module = getattr(module, "model", module) if hasattr(module, "predictor") else module
    module.eval()
    names: Mapping[int, str] = module.names
    classes = tuple(str(names[k]) for k in range(len(names)))
    known = None if all(name == str(k) for k, name in enumerate(classes)) else classes
    size = _image_size(module)
    plain = Preprocessing(mean=(0.0,) * 3, std=(1.0,) * 3, crop=size, resize=size)
    found = replace(classifier, module=module, classes=known, preprocessing=plain, origins={})
    if not hasattr(module, "stride") or int(max(module.stride)) < STRIDE:  # it gives classes
        return replace(found, module=FirstOutput(module).eval())
    parameter = next(module.parameters())
    with torch.no_grad():
        trial = FirstOutput(module)(torch.zeros(1, 3, 2 * STRIDE, 2 * STRIDE).to(parameter))
    if trial.dim() != 3 or trial.shape[1] < 4 + len(classes):
        raise ModelError(
            f"{classifier.name} selects its boxes inside the network: choose a model without that, "
            "such as yolov8n.pt or yolo11n.pt"
        )
    side = -(-size // STRIDE) * STRIDE
    padded = replace(plain, fit="letterbox", crop=side, resize=side)
    wrapped = CandidateBoxes(module, 4 + len(classes))
    return replace(found, module=wrapped.eval(), preprocessing=padded, boxes=BOXES)


def _image_size(module: Any) -> int:
    """Return the size that a model was trained with, or 640."""
    arguments: Any = getattr(module, "args", {})
    settings: Mapping[str, Any] = arguments if isinstance(arguments, dict) else vars(arguments)
    size = settings.get("imgsz") or 640
    return int(size if isinstance(size, int) else max(size))
