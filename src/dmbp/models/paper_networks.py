"""ResNet50 as Keras and Caffe have it: the first version of the architecture.

It differs from torchvision's in three ways that a state dict does not show, so loading its weights
into torchvision's network gives a silently worse one: the stride sits on a block's first 1×1
convolution, batch norm's epsilon is 1e-3, and the mean of the training images is another.

ImageNet backbones with a linear head for the 20 VOC classes: stand-ins for the paper's VOC nets.

    resnet50-voc    ResNet50 as Keras has it, its last layer replaced
    vgg16-voc       VGG16's convolutions, the mean over positions, a linear layer

`--weights` names the folder that holds the backbone's file and the head's.

The paper's VOC networks: Caffe's ResNet50 and VGG16 in the files that TorchRay distributes.

    resnet50-voc-caffe   resnet50_voc-9ca920d6.pth.tar
    vgg16-voc-caffe      vgg16_voc-b050e8c3.pth.tar

Zhang et al., "Top-down Neural Attention by Excitation Backprop", ECCV 2016, trained them. What is
known of the files comes from TorchRay's documentation and its `benchmark/models.py`:

- ResNet50: the first convolution has a bias, the first pooling has no padding and rounds up, the
  stride sits on a block's first 1×1 convolution. Batch norm is split in two as in Caffe: `bn1.0`
  has the statistics, `bn1.1` the scale and shift; likewise `downsample.1.0` and `downsample.1.1`.
- VGG16: pooling rounds up; the classifier's layers are numbered 0, 2, 4, without dropout, and may
  be written as convolutions. Features are averaged to 7×7, as in torchvision: of 224×224 pixels
  that changes nothing. TorchRay can also slide the classifier over larger photos; we do not.
- The first convolution takes BGR; it is turned here, so inputs are RGB.
- Photos: 255·RGB minus (123.68, 116.779, 103.939), the short side 224 pixels, no crop. Pillow
  smooths as it shrinks a photo, TorchRay's resizing does not.
- 20 outputs, each through a sigmoid.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dmbp.errors import WeightsError
from dmbp.models.classifier import Classifier, Preprocessing
from dmbp.models.state_dict import State, fit, read_state
from dmbp.models.torchvision_models import import_torchvision
from dmbp.models.voc160 import CLASSES

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


def resnet50_voc_classifier(weights: Path | None) -> Classifier:
    """ResNet50 with the VOC head."""
    folder = _folder("resnet50-voc", weights)
    backbone = keras_resnet50_classifier(folder / "resnet50_imagenet.safetensors")
    backbone.module.fc = _head(folder / "resnet50_voc_head.safetensors", 2048)
    module = backbone.module.eval()
    return Classifier("resnet50-voc", module, backbone.preprocessing, CLASSES, "sigmoid")


def vgg16_voc_classifier(weights: Path | None) -> Classifier:
    """VGG16 with the VOC head."""
    folder = _folder("vgg16-voc", weights)
    vgg = import_torchvision().models.vgg
    features = vgg.make_layers(vgg.cfgs["D"])
    path = folder / "vgg16_features.safetensors"
    state = {key.removeprefix("features."): value for key, value in read_state(path).items()}
    fit(features, state, str(path))
    head = _head(folder / "vgg16_voc_head.safetensors", 512)
    module = nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    return Classifier("vgg16-voc", module.eval(), Preprocessing(), CLASSES, "sigmoid")


def _folder(name: str, weights: Path | None) -> Path:
    if weights is None or not weights.is_dir():
        raise WeightsError(
            f"{name} has no weights to download: give the folder of its backbone and head with "
            "--weights"
        )
    return weights


def _head(path: Path, features: int) -> nn.Linear:
    head = nn.Linear(features, len(CLASSES))
    fit(head, {key.split(".")[-1]: value for key, value in read_state(path).items()}, str(path))
    return head


CAFFE = Preprocessing(
    fit="whole",
    mean=(123.68 / 255, 116.779 / 255, 103.939 / 255),
    std=(1 / 255, 1 / 255, 1 / 255),
)
"""Photos in [0, 1], minus the mean, times 255."""

_SPLIT_NORM = re.compile(r"(bn\d|downsample\.1)\.[01]\.")
_DENSE = {"classifier.2.": "classifier.3.", "classifier.4.": "classifier.6."}


def caffe_resnet50() -> nn.Module:
    """The architecture of the VOC ResNet50, with random weights."""
    module: Any = import_torchvision().models.resnet50(weights=None, num_classes=len(CLASSES))
    module.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3)
    module.maxpool = nn.MaxPool2d(3, stride=2, ceil_mode=True)
    for layer in (module.layer2, module.layer3, module.layer4):
        layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)
    return module


def caffe_vgg16() -> nn.Module:
    """The architecture of the VOC VGG16, with random weights."""
    module: nn.Module = import_torchvision().models.vgg16(
        weights=None, num_classes=len(CLASSES), init_weights=False
    )
    for part in module.modules():
        if isinstance(part, nn.MaxPool2d):
            part.ceil_mode = True
    return module


def resnet50_voc_caffe_classifier(weights: Path | None) -> Classifier:
    """The VOC ResNet50 from its file."""
    state = _state("resnet50-voc-caffe", weights)
    renamed = {_SPLIT_NORM.sub(r"\1.", key): value for key, value in state.items()}
    module = caffe_resnet50()
    fit(module, _rgb(renamed, "conv1.weight"), str(weights))
    return Classifier("resnet50-voc-caffe", module.eval(), CAFFE, CLASSES, "sigmoid")


def vgg16_voc_caffe_classifier(weights: Path | None) -> Classifier:
    """The VOC VGG16 from its file."""
    state = _state("vgg16-voc-caffe", weights)
    module = caffe_vgg16()
    fit(module, _rgb(_dense(state), "features.0.weight"), str(weights))
    return Classifier("vgg16-voc-caffe", module.eval(), CAFFE, CLASSES, "sigmoid")


def _state(name: str, weights: Path | None) -> State:
    if weights is None:
        raise WeightsError(
            f"{name} has no weights to download here: give the file that TorchRay distributes with "
            "--weights"
        )
    return read_state(weights)


def _rgb(state: Mapping[str, Tensor], first: str) -> State:
    """The first convolution's weight, from BGR to RGB."""
    weight = state.get(first)
    turns = weight is not None and weight.dim() == 4 and weight.shape[1] == 3
    return {**state, first: weight.flip(1)} if turns and weight is not None else state


def _dense(state: State) -> dict[str, Tensor]:
    """The classifier numbered as torchvision's, its convolutions as matrices."""
    found: dict[str, Tensor] = {}
    for key, value in state.items():
        layer = re.sub(r"^classifier\.[24]\.", lambda match: _DENSE[match[0]], key)
        is_matrix = key.startswith("classifier.") and value.dim() == 4
        found[layer] = value.flatten(1) if is_matrix else value
    return found
