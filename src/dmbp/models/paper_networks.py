"""The paper's networks, and stand-ins for its VOC networks with other weights.

resnet50-keras: ResNet50 for ImageNet in its first version, as in Keras and Caffe. It differs from
torchvision's in three ways that a state dict does not show, so torchvision's network with these
weights would be worse without an error: the stride is on a block's first 1×1 convolution, batch
norm's epsilon is 1e-3, and the mean of the training images is different.

resnet50-voc, vgg16-voc: an ImageNet backbone with a linear head for the 20 VOC classes, stand-ins
for the paper's VOC networks. `--weights` names the folder with the backbone's file and the head's.

resnet50-voc-caffe, vgg16-voc-caffe: the paper's VOC networks, from the files that TorchRay
distributes (`resnet50_voc-9ca920d6.pth.tar` and `vgg16_voc-b050e8c3.pth.tar`). Zhang et al.,
"Top-down Neural Attention by Excitation Backprop", ECCV 2016, trained them with Caffe. Their layout
follows TorchRay's documentation and its `benchmark/models.py`:

- ResNet50: the first convolution has a bias, the first pooling has no padding and rounds up, the
  stride is on a block's first 1×1 convolution. Batch norm is split in two as in Caffe: `bn1.0` has
  the statistics, `bn1.1` the scale and shift; likewise `downsample.1.0` and `downsample.1.1`.
- VGG16: pooling rounds up; the classifier's layers are numbered 0, 2, 4, without dropout, and may
  be stored as convolutions. Features are averaged to 7×7 as in torchvision, which changes nothing
  at 224×224 pixels. TorchRay can also slide the classifier over larger photos; dmbp does not.
- The first convolution takes BGR; its weights are reordered on loading, so inputs are RGB.
- Photos are 255·RGB minus (123.68, 116.779, 103.939), with a short side of 224 pixels and no crop.
  Pillow smooths a photo when it shrinks it, TorchRay's resizing does not.
- Each of the 20 outputs goes through a sigmoid.
"""

import re
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dmbp.errors import WeightsError
from dmbp.models.classifier import Classifier, Preprocessing
from dmbp.models.state_dict import StateDict, load_state_dict, read_state_dict
from dmbp.models.torchvision_models import import_torchvision
from dmbp.models.voc160 import CLASSES

MEAN = (0.48502, 0.45796, 0.40760)
STD = (0.229, 0.224, 0.225)
EPSILON = 1e-3


def keras_resnet50() -> nn.Module:
    """Return Keras's ResNet50 with random weights."""
    module: Any = import_torchvision().models.resnet50(weights=None)
    for layer in (module.layer2, module.layer3, module.layer4):
        layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.eps = EPSILON
    return module


def keras_resnet50_classifier(weights: Path | None) -> Classifier:
    """Return Keras's ResNet50 for ImageNet, from a file whose keys are torchvision's."""
    if weights is None:
        raise WeightsError("resnet50-keras has no weights to download: give a file with --weights")
    module = keras_resnet50()
    load_state_dict(module, read_state_dict(weights), str(weights))
    names = tuple(import_torchvision().models.ResNet50_Weights.DEFAULT.meta["categories"])
    return Classifier("resnet50-keras", module.eval(), Preprocessing(mean=MEAN, std=STD), names)


def resnet50_voc_classifier(weights: Path | None) -> Classifier:
    """Return Keras's ResNet50 with a linear VOC head."""
    folder = _require_folder("resnet50-voc", weights)
    backbone = keras_resnet50_classifier(folder / "resnet50_imagenet.safetensors")
    backbone.module.fc = _load_head(folder / "resnet50_voc_head.safetensors", 2048)
    module = backbone.module.eval()
    return Classifier("resnet50-voc", module, backbone.preprocessing, CLASSES, "sigmoid")


def vgg16_voc_classifier(weights: Path | None) -> Classifier:
    """Return VGG16's convolutions, a mean over positions, and a linear VOC head."""
    folder = _require_folder("vgg16-voc", weights)
    vgg = import_torchvision().models.vgg
    features = vgg.make_layers(vgg.cfgs["D"])
    path = folder / "vgg16_features.safetensors"
    state = {key.removeprefix("features."): value for key, value in read_state_dict(path).items()}
    load_state_dict(features, state, str(path))
    head = _load_head(folder / "vgg16_voc_head.safetensors", 512)
    module = nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    return Classifier("vgg16-voc", module.eval(), Preprocessing(), CLASSES, "sigmoid")


def _require_folder(name: str, weights: Path | None) -> Path:
    if weights is None or not weights.is_dir():
        raise WeightsError(
            f"{name} has no weights to download: give the folder of its backbone and head with "
            "--weights"
        )
    return weights


def _load_head(path: Path, features: int) -> nn.Linear:
    head = nn.Linear(features, len(CLASSES))
    state = {key.split(".")[-1]: value for key, value in read_state_dict(path).items()}
    load_state_dict(head, state, str(path))
    return head


CAFFE_PREPROCESSING = Preprocessing(
    fit="whole",
    mean=(123.68 / 255, 116.779 / 255, 103.939 / 255),
    std=(1 / 255, 1 / 255, 1 / 255),
)
"""Photos in [0, 1] minus the mean, times 255."""

_SPLIT_NORM = re.compile(r"(bn\d|downsample\.1)\.[01]\.")
_CLASSIFIER_LAYERS = {"classifier.2.": "classifier.3.", "classifier.4.": "classifier.6."}


def caffe_resnet50() -> nn.Module:
    """Return the architecture of the VOC ResNet50 with random weights."""
    module: Any = import_torchvision().models.resnet50(weights=None, num_classes=len(CLASSES))
    module.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3)
    module.maxpool = nn.MaxPool2d(3, stride=2, ceil_mode=True)
    for layer in (module.layer2, module.layer3, module.layer4):
        layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)
    return module


def caffe_vgg16() -> nn.Module:
    """Return the architecture of the VOC VGG16 with random weights."""
    module: nn.Module = import_torchvision().models.vgg16(
        weights=None, num_classes=len(CLASSES), init_weights=False
    )
    for part in module.modules():
        if isinstance(part, nn.MaxPool2d):
            part.ceil_mode = True
    return module


def resnet50_voc_caffe_classifier(weights: Path | None) -> Classifier:
    """Return the VOC ResNet50 from TorchRay's file."""
    state = _read_torchray_file("resnet50-voc-caffe", weights)
    renamed = {_SPLIT_NORM.sub(r"\1.", key): value for key, value in state.items()}
    module = caffe_resnet50()
    load_state_dict(module, _from_bgr(renamed, "conv1.weight"), str(weights))
    return Classifier("resnet50-voc-caffe", module.eval(), CAFFE_PREPROCESSING, CLASSES, "sigmoid")


def vgg16_voc_caffe_classifier(weights: Path | None) -> Classifier:
    """Return the VOC VGG16 from TorchRay's file."""
    state = _read_torchray_file("vgg16-voc-caffe", weights)
    module = caffe_vgg16()
    load_state_dict(
        module, _from_bgr(_with_dense_classifier(state), "features.0.weight"), str(weights)
    )
    return Classifier("vgg16-voc-caffe", module.eval(), CAFFE_PREPROCESSING, CLASSES, "sigmoid")


def _read_torchray_file(name: str, weights: Path | None) -> StateDict:
    if weights is None:
        raise WeightsError(
            f"{name} has no weights to download: give the file that TorchRay distributes with "
            "--weights"
        )
    return read_state_dict(weights)


def _from_bgr(state: StateDict, first: str) -> StateDict:
    """Return weights with the first convolution's input channels reordered from BGR to RGB."""
    weight = state.get(first)
    if weight is None or weight.dim() != 4 or weight.shape[1] != 3:
        return state
    return {**state, first: weight.flip(1)}


def _with_dense_classifier(state: StateDict) -> dict[str, Tensor]:
    """Return weights with VGG's classifier as matrices, numbered as in torchvision."""
    converted: dict[str, Tensor] = {}
    for key, value in state.items():
        layer = re.sub(r"^classifier\.[24]\.", lambda match: _CLASSIFIER_LAYERS[match[0]], key)
        is_convolution = key.startswith("classifier.") and value.dim() == 4
        converted[layer] = value.flatten(1) if is_convolution else value
    return converted
