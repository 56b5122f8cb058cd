"""Networks with random weights, and how exactly the linear network reproduces each of them."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

import dmbp
from dmbp.models.torchvision_models import import_torchvision
from tests import nets

TORCHVISION = (
    *("resnet18", "resnet50", "resnext50_32x4d", "vgg11", "vgg16_bn", "squeezenet1_1", "alexnet"),
    *("densenet121", "googlenet", "inception_v3", "mobilenet_v2", "mnasnet1_0"),
    *("shufflenet_v2_x1_0", "regnet_x_400mf"),
)
SIDES = {"inception_v3": 96}
TARGET = 3


def _torchvision(name: str) -> tuple[nn.Module, Tensor]:
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    model: nn.Module = import_torchvision().models.get_model(name, weights=None, **options)
    side = SIDES.get(name, 64)
    return model, torch.randn(2, 3, side, side)


def _own(make: Callable[[], nn.Module], *shape: int) -> tuple[nn.Module, Tensor]:
    return make(), torch.randn(2, *shape)


NETWORKS: Mapping[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    **{name: partial(_torchvision, name) for name in TORCHVISION},
    "functional": partial(_own, nets.FunctionalNet, 3, 16, 16),
    "reused": partial(_own, nets.ReusedNet, 3, 16, 16),
    "in-place": partial(_own, nets.InPlaceNet, 3, 16, 16),
    "leaky+prelu": partial(_own, nets.LeakyNet, 3, 16, 16),
    "mlp": partial(_own, nets.MLP, 7),
}
"""Functions that return a network with random weights and a batch of two inputs for it."""


def measure(name: str, dtype: torch.dtype) -> tuple[float, int]:
    """Return the relative error of `net.value()` and the number of sites.

    The error is the largest |net.value() − model(x)[:, target]|, relative to the model's largest
    output; batch-norm statistics are randomised.
    """
    torch.manual_seed(0)
    model, inputs = NETWORKS[name]()
    nets.randomise_statistics(model)
    model, inputs = model.eval().to(dtype), inputs.to(dtype)
    net = dmbp.linearize(model, inputs, target=TARGET)
    with torch.no_grad():
        outputs = model(inputs)
    error = (net.value() - outputs[:, TARGET]).abs().max() / outputs.abs().max()
    return float(error), len(net.sites)
