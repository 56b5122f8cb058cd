"""ImageNet backbones with a linear head for the 20 VOC classes: stand-ins for the paper's VOC nets.

    resnet50-voc    ResNet50 as Keras has it, its last layer replaced
    vgg16-voc       VGG16's convolutions, the mean over positions, a linear layer

`--weights` names the folder that holds the backbone's file and the head's.
"""

from pathlib import Path

from torch import nn

from dmbp.errors import WeightsError
from dmbp.models.classifier import Classifier, Preprocessing
from dmbp.models.keras_resnet50 import keras_resnet50_classifier
from dmbp.models.small_resnet import CLASSES
from dmbp.models.state import fit, read_state
from dmbp.models.torchvision_import import import_torchvision


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
