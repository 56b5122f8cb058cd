"""How exactly the linear network reproduces the model: `python -m benchmarks.exactness`.

Random weights and randomised batch-norm statistics, batch of two, in float64 and float32. The error
is the largest of |net.value() − model(x)[:, target]| relative to the model's largest output.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial

import torch
from tests import nets
from torch import Tensor, nn

import dmbp
from dmbp.models.torchvision_models import import_torchvision

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


def measure(name: str, dtype: torch.dtype) -> tuple[float, int]:
    """The relative error of `net.value()` and the number of sites."""
    torch.manual_seed(0)
    model, inputs = NETWORKS[name]()
    nets.randomise_statistics(model)
    model, inputs = model.eval().to(dtype), inputs.to(dtype)
    net = dmbp.linearize(model, inputs, target=TARGET)
    with torch.no_grad():
        outputs = model(inputs)
    error = (net.value() - outputs[:, TARGET]).abs().max() / outputs.abs().max()
    return float(error), len(net.sites)


def main() -> None:
    print(f"{'network':20s} {'sites':>6s} {'float64':>10s} {'float32':>10s} {'seconds':>8s}")
    for name in NETWORKS:
        started = time.perf_counter()
        double, sites = measure(name, torch.float64)
        single, _ = measure(name, torch.float32)
        seconds = time.perf_counter() - started
        print(f"{name:20s} {sites:6d} {double:10.1e} {single:10.1e} {seconds:8.1f}")


if __name__ == "__main__":
    main()
