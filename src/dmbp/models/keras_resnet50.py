"""ResNet50 as Keras and Caffe have it: the first version of the architecture.

It differs from torchvision's in three ways that a state dict does not show, so loading its weights
into torchvision's network gives a silently worse one: the stride sits on a block's first 1×1
convolution, batch norm's epsilon is 1e-3, and the mean of the training images is another.
"""

from pathlib import Path
from typing import Any

from torch import nn

from dmbp.errors import WeightsError
from dmbp.models.classifier import Classifier, Preprocessing
from dmbp.models.state import fit, read_state
from dmbp.models.torchvision_import import import_torchvision

MEAN = (0.48502, 0.45796, 0.40760)
STD = (0.229, 0.224, 0.225)
EPSILON = 1e-3


def keras_resnet50() -> nn.Module:
    """The architecture, with random weights."""
    module: Any = import_torchvision().models.resnet50(weights=None)
    for layer in (module.layer2, module.layer3, module.layer4):
        layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.eps = EPSILON
    return module


def keras_resnet50_classifier(weights: Path | None) -> Classifier:
    """The ImageNet classifier, from a file of weights with torchvision's key names."""
    if weights is None:
        raise WeightsError("resnet50-keras has no weights to download: give a file with --weights")
    module = keras_resnet50()
    fit(module, read_state(weights), str(weights))
    names = tuple(import_torchvision().models.ResNet50_Weights.DEFAULT.meta["categories"])
    return Classifier("resnet50-keras", module.eval(), Preprocessing(mean=MEAN, std=STD), names)
