"""The embedded default model: a small ReLU residual network for the 20 PASCAL VOC classes.

Its weights are part of the package, so `dmbp explain photo.jpg` works without a download; its model
card is `weights/voc160.md`. The network takes normalised RGB at 160×160 and returns one logit for
each class; classes are not exclusive, so probabilities are the sigmoid of the logits. It consists
of convolution, batch norm, ReLU, max pooling, average pooling, addition and one linear layer, so
around any input it is exactly an affine map.

    >>> model = SmallResNet().eval()
    >>> model(torch.zeros(1, 3, INPUT_SIZE, INPUT_SIZE)).shape
    torch.Size([1, 20])

The last stage keeps the resolution of the one before it (10×10 rather than 5×5), which separates
small objects and costs computation but no parameters. Shortcuts that halve the resolution average
pixels instead of skipping some, so that no input pixel is ignored.

Residual learning: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016.
Averaging shortcuts: He et al., "Bag of Tricks for Image Classification", CVPR 2019.
"""

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import ClassVar

import torch
from safetensors.torch import load
from torch import Tensor, nn

from dmbp.errors import WeightsError
from dmbp.models.classifier import Classifier, Preprocessing
from dmbp.models.state_dict import load_state_dict, read_state_dict

NAME = "voc160"
FILE = "weights/voc160.safetensors"
GRAPH_FILE = "weights/voc160.graph"
SHA256 = "6fd26fc0c35bdf6e4726a96dcd9feeac559f429a102ae83f43bc5e9c335034a0"

CLASSES = (
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
)
INPUT_SIZE = 160
MEAN = (0.48502, 0.45796, 0.40760)
STD = (0.229, 0.224, 0.225)

STEM_WIDTH = 32
# (channels, blocks, stride of the first block); for 160×160 inputs 40×40, 20×20, 10×10, 10×10.
STAGES = ((32, 2, 1), (64, 2, 2), (128, 4, 2), (192, 4, 1))


def embedded_classifier(weights: Path | None) -> Classifier:
    """Return the built-in model, with the weights of the package or of a file."""
    module = SmallResNet()
    if weights is None:
        load_state_dict(module, load(_read_verified_weights()), "the built-in model")
    else:
        load_state_dict(module, read_state_dict(weights), str(weights))
    # It was trained on whole photos squeezed to a square and on crops; a crop keeps shapes intact.
    preprocessing = Preprocessing(resize=INPUT_SIZE, crop=INPUT_SIZE, mean=MEAN, std=STD)
    return Classifier(NAME, module.eval(), preprocessing, CLASSES, activation="sigmoid")


def _read_verified_weights() -> bytes:
    """Return the content of the embedded file after checking its checksum."""
    try:
        content = files("dmbp.models").joinpath(FILE).read_bytes()
    except OSError as error:
        raise WeightsError(
            f"the built-in model is missing ({error}); install dmbp again"
        ) from error
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise WeightsError(
            f"the built-in model is damaged: {FILE} does not have the checksum it was shipped "
            "with; install dmbp again"
        )
    return content


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions f with a shortcut: relu(f(x) + shortcut(x))."""

    def __init__(self, channels_in: int, channels_out: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.relu = nn.ReLU()
        self.shortcut = _shortcut(channels_in, channels_out, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        residual = self.relu(self.bn1(self.conv1(x)))
        residual = self.bn2(self.conv2(residual))
        return self.relu(residual + self.shortcut(x))


class SmallResNet(nn.Module):
    """Residual network of 3.9 million parameters, from normalised RGB to (batch, 20) logits."""

    captured_graph: ClassVar = Path(__file__).parent / GRAPH_FILE
    """Spares the first explanation the export (`linear/capture/cache.py`)."""

    def __init__(
        self,
        class_count: int = len(CLASSES),
        *,
        stem_width: int = STEM_WIDTH,
        stages: Sequence[tuple[int, int, int]] = STAGES,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, stem_width, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(stem_width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.stages = nn.Sequential()
        width = stem_width
        for channels, blocks, stride in stages:
            self.stages.append(_stage(width, channels, blocks=blocks, stride=stride))
            width = channels
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(width, class_count)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.avgpool(self.features(x)), 1))

    def features(self, x: Tensor) -> Tensor:
        """Return the last feature map before pooling, (batch, 192, height / 16, width / 16)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.stages(x)


def _stage(channels_in: int, channels_out: int, *, blocks: int, stride: int) -> nn.Sequential:
    first = ResidualBlock(channels_in, channels_out, stride=stride)
    others = (ResidualBlock(channels_out, channels_out, stride=1) for _ in range(blocks - 1))
    return nn.Sequential(first, *others)


def _shortcut(channels_in: int, channels_out: int, *, stride: int) -> nn.Module:
    if stride == 1 and channels_in == channels_out:
        return nn.Identity()
    shortcut = nn.Sequential()
    if stride > 1:
        shortcut.append(nn.AvgPool2d(stride, ceil_mode=True))  # rounds up as the convolution does
    shortcut.append(nn.Conv2d(channels_in, channels_out, 1, bias=False))
    shortcut.append(nn.BatchNorm2d(channels_out))
    return shortcut
