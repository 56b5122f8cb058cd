"""What the tests of single methods share: images, their targets, and networks for comparisons."""

from functools import lru_cache

import torch
from torch import Tensor, nn

from dmbp.attribution import METHODS
from dmbp.linear import Linearizer
from dmbp.models.torchvision_models import import_torchvision
from tests import nets

TARGET = [0, 1, 2]
"""A class for each of the three images."""


def images(side: int = 16) -> Tensor:
    return torch.randn(3, 3, side, side, dtype=torch.float64)


@lru_cache(maxsize=32)
def captures(model: nn.Module) -> Linearizer:
    """The graphs that methods have captured of a network, which is what takes most of the time."""
    return Linearizer(model)


def attribute(name: str, model: nn.Module, inputs: Tensor, **settings: object) -> Tensor:
    method = METHODS[name](model, **settings)
    method.linearizer.share_captures(captures(model))
    return method.attribute(inputs, target=TARGET)


class HookedNet(nn.Module):
    """Each ReLU is a module that runs once, so implementations that use hooks can follow it."""

    def __init__(self, pool: type[nn.Module] = nn.MaxPool2d) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            pool(2),
            nn.Conv2d(6, 8, 3, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Sequential(pool(2), nn.Flatten(), nn.Linear(128, 10), nn.ReLU())
        self.last = nn.Linear(10, 5)
        nets.randomise_statistics(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.head(self.features(x)))


def torchvision_network(name: str) -> nn.Module:
    """One of torchvision's networks in double precision, with random weights and statistics."""
    torch.manual_seed(0)
    options = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
    model = getattr(import_torchvision().models, name)(weights=None, **options)
    nets.randomise_statistics(model)
    return model.double().eval()
