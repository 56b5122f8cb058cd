"""The teacher: an ImageNet ResNet50 with a 20-way PASCAL VOC head in place of its last layer.

Batch norms are folded into the convolutions for speed. The network is the original one from Caffe
and Keras: if a stage halves the resolution, the first 1×1 convolution of its first block has the
stride, and batch norm uses an epsilon of 1e-3.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from dmbp.models.voc160 import CLASSES

INPUT_SIZE = 224
FEATURE_CHANNELS = 2048
BATCH_NORM_EPSILON = 1e-3
# (channels of the 3×3 convolutions, blocks, stride of the first block)
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
EXPANSION = 4


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolution, added to a shortcut."""

    def __init__(self, channels_in: int, width: int, *, stride: int, project: bool) -> None:
        super().__init__()
        channels_out = EXPANSION * width
        self.conv1 = nn.Conv2d(channels_in, width, 1, stride)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.conv3 = nn.Conv2d(width, channels_out, 1)
        self.relu = nn.ReLU()
        self.downsample = nn.Conv2d(channels_in, channels_out, 1, stride) if project else None

    def forward(self, x: Tensor) -> Tensor:
        residual = self.relu(self.conv1(x))
        residual = self.relu(self.conv2(residual))
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(self.conv3(residual) + shortcut)


class Teacher(nn.Module):
    """ResNet50 with its batch norms folded; normalised RGB in, (batch, 20) logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = 64
        for number, (width, blocks, stride) in enumerate(STAGES, start=1):
            stage = nn.Sequential(Bottleneck(channels, width, stride=stride, project=True))
            channels = EXPANSION * width
            for _ in range(blocks - 1):
                stage.append(Bottleneck(channels, width, stride=1, project=False))
            self.add_module(f"layer{number}", stage)
        self.fc = nn.Linear(channels, len(CLASSES))

    def features(self, x: Tensor) -> Tensor:
        """Return the last feature map, (batch, 2048, 7, 7) for inputs of 224×224."""
        x = self.maxpool(self.relu(self.conv1(x)))
        for number in range(1, len(STAGES) + 1):
            x = self.get_submodule(f"layer{number}")(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x).mean((2, 3)))


def load_teacher(folder: Path) -> Teacher:
    """Read `resnet50_imagenet.safetensors` and `resnet50_voc_head.safetensors`."""
    stored = load_file(folder / "resnet50_imagenet.safetensors")
    stored = {name: tensor.float() for name, tensor in stored.items()}
    head = load_file(folder / "resnet50_voc_head.safetensors")

    state: dict[str, Tensor] = {"fc.weight": head["weight"], "fc.bias": head["bias"]}
    convolutions = (name for name in stored if name.endswith(".weight") and stored[name].ndim == 4)
    for name in convolutions:
        convolution = name.removesuffix(".weight")
        weight, bias = _fold(stored, convolution)
        # The stored `downsample` is a sequence of convolution and batch norm; here it is one layer.
        folded = convolution.replace("downsample.0", "downsample")
        state[f"{folded}.weight"] = weight
        state[f"{folded}.bias"] = bias

    teacher = Teacher()
    teacher.load_state_dict(state)
    return teacher.eval().requires_grad_(False)


def _fold(stored: dict[str, Tensor], convolution: str) -> tuple[Tensor, Tensor]:
    """Return the weight and bias of a convolution with its batch norm folded in."""
    norm = convolution.replace("downsample.0", "downsample.1").replace("conv", "bn")
    variance = stored[f"{norm}.running_var"]
    scale = stored[f"{norm}.weight"] * torch.rsqrt(variance + BATCH_NORM_EPSILON)
    weight = stored[f"{convolution}.weight"] * scale.view(-1, 1, 1, 1)
    bias = stored[f"{norm}.bias"] - stored[f"{norm}.running_mean"] * scale
    return weight, bias
