"""Models that commands load by name, as users' own: `tests.cli.networks:good`."""

from typing import Any

import torch
from torch import Tensor, nn

from dmbp.models import Classifier, Preprocessing
from tests.nets import TinyViT

SMALL = Preprocessing(32, 32)


def net(*layers: nn.Module, channels: int = 3) -> nn.Sequential:
    """A convolution, and either `layers` or a small network of three classes."""
    torch.manual_seed(0)
    layers = layers or (nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    return nn.Sequential(nn.Conv2d(channels, 4, 3), *layers)


def good() -> Classifier:
    return Classifier("good", net(), Preprocessing(32, 32), ("cat", "dog", "hamster"))


def reversed_channels() -> Classifier:
    """The good network for images whose channels are in reverse."""
    classifier = good()
    first: Any = classifier.module[0]  # pyright: ignore
    first.weight.data = first.weight.data.flip(1)
    return classifier


def several() -> Classifier:
    """Several classes may be right."""
    return Classifier("several", net(), Preprocessing(32, 32), activation="sigmoid")


def smooth() -> Classifier:
    torch.manual_seed(1)
    layers = nn.Tanh(), nn.Conv2d(4, 4, 3), nn.GELU(), *net()[2:]
    return Classifier("smooth", net(*layers), Preprocessing(32, 32))


def tokens() -> Classifier:
    """A transformer whose class token is read."""
    torch.manual_seed(0)
    return Classifier("tokens", TinyViT(), Preprocessing(32, 32))


def star() -> nn.Module:
    """Its name between colons would be an emoji."""
    return net()


def double() -> nn.Module:
    return net().double()


def affine() -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 3))


def grey() -> nn.Module:
    return net(*net()[1:], channels=1)


grey_module = grey()


def yes_no(*layers: nn.Module) -> nn.Module:
    """A single output."""
    torch.manual_seed(0)
    return net(nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 1), *layers)


def sure() -> nn.Module:
    return yes_no(_with_bias(5.0), nn.Sigmoid())


def unsure() -> nn.Module:
    return yes_no(_with_bias(-5.0), nn.Sigmoid())


def _with_bias(bias: float) -> nn.Module:
    linear = nn.Linear(1, 1)
    nn.init.constant_(linear.weight, 0.1)
    nn.init.constant_(linear.bias, bias)
    return linear


def segmenter() -> nn.Module:
    """Its outputs are maps, not classes."""
    return net(nn.ReLU())


def tangled() -> nn.Module:
    """Its outputs have more dimensions than any known kind."""
    return nn.Sequential(*net(), nn.Linear(3, 16), nn.Unflatten(1, (2, 2, 2, 2)))


def constant() -> nn.Module:
    """Its outputs hardly depend on the input."""
    model = net()
    nn.init.constant_(model[0].weight, 1e-20)
    nn.init.constant_(model[0].bias, 1.0)
    return model


def poisoned() -> nn.Module:
    model = net()
    nn.init.constant_(model[0].weight, float("nan"))
    return model


class Spectral(nn.Module):
    """Uses an operation without a rule."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft2(x).abs().mean((2, 3))


def spectral() -> nn.Module:
    return net(nn.ReLU(), Spectral())


forward_passes: list[tuple[int, ...]] = []


class Counted(nn.Sequential):
    """Notes the shape of the input of every forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        forward_passes.append(tuple(x.shape))
        return super().forward(x)


def counted() -> Classifier:
    return Classifier("counted", Counted(*net()), Preprocessing(32, 32))


class Branching(nn.Module):
    """Cannot be exported."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) if x.sum() > 0 else x.amax((2, 3))


def branching() -> nn.Module:
    return net(nn.ReLU(), Branching())


def quarter_maps() -> Classifier:
    """Scores of three classes at a quarter of the image's places."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1)
    return Classifier("quarter_maps", nn.Sequential(*layers), SMALL, ("sky", "cat", "dog"))


class Yolo(nn.Module):
    """Boxes and scores of two classes on grids of stride 8, 16 and 32, as YOLO v8 gives them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 8, stride=8)
        self.scores = nn.Conv2d(8, 2, 1)
        boxes: list[list[float]] = []
        for stride in (8, 16, 32):
            middles = [stride * (k + 0.5) for k in range(32 // stride)]
            boxes += [[x, y, stride, stride] for y in middles for x in middles]
        self.boxes = nn.Buffer(torch.tensor(boxes).T)

    def forward(self, x: Tensor) -> Tensor:
        features = self.stem(x).relu()
        levels = [features, *(nn.functional.avg_pool2d(features, k) for k in (2, 4))]
        scores = torch.cat([self.scores(level).flatten(2) for level in levels], 2).sigmoid()
        return torch.cat([self.boxes.expand(len(x), 4, 21), scores], 1)


def detector() -> Classifier:
    return Classifier("detector", Yolo(), SMALL, ("cat", "dog"))


class Reader(nn.Module):
    """Scores of four characters at eight steps from left to right."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem = nn.Conv2d(3, 8, (32, 4), stride=(32, 4))
        self.scores = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return 4 * self.scores(self.stem(x).relu()[:, :, 0].mT)


def reader() -> Classifier:
    return Classifier("reader", Reader(), SMALL, ("", "a", "b", "c"))


def regression() -> Classifier:
    return Classifier("regression", net(), SMALL, activation="none")


def encoder() -> Classifier:
    """An embedding of 16 numbers, and a text encoder that counts letters."""
    torch.manual_seed(0)
    layers = nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    return Classifier("encoder", net(*layers), SMALL, embed=_count_letters)


def _count_letters(text: str) -> Tensor:
    return torch.tensor([float(text.count(letter)) + 0.1 for letter in "etaoinshrdlucmfw"])
