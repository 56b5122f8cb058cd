"""DMBP from end to end on many kinds of networks: `python -m benchmarks.end_to_end [NETWORK…]`.

Runs ten iterations on two inputs with random weights in float64. Prints whether all terms are
finite, how far their sum is from the model's score, and how far the maps of each input alone are
from those of both together.
"""

import argparse
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import dmbp
from benchmarks.sweep import randomise
from dmbp.engine import plan_for
from dmbp.models.torchvision_models import import_torchvision

ITERATIONS = 10


def block(before: int, after: int) -> nn.Sequential:
    layers = [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.SiLU()]
    return nn.Sequential(*layers, nn.Conv2d(after, after, 3, padding=1), nn.SiLU())


class UNet(nn.Module):
    """A U-Net's encoder and decoder, followed by a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([block(3, 8), block(8, 16), block(16, 32)])
        self.grow = nn.ModuleList(
            [nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)]
        )
        self.up = nn.ModuleList([block(32, 16), block(16, 8)])
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down[0](x)
        second = self.down[1](functional.max_pool2d(first, 2))
        x = self.down[2](functional.max_pool2d(second, 2))
        x = self.up[0](torch.cat([self.grow[0](x), second], 1))
        x = self.up[1](torch.cat([self.grow[1](x), first], 1))
        return self.head(x.mean((2, 3)))


def sequence() -> nn.Module:
    layers = [nn.Conv1d(2, 16, 5, 2), nn.BatchNorm1d(16), nn.GELU(), nn.Conv1d(16, 16, 5, 2)]
    return nn.Sequential(*layers, nn.ELU(), nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(64, 6))


def perceptron() -> nn.Module:
    layers = [nn.Linear(20, 32), nn.Tanh(), nn.LayerNorm(32), nn.Linear(32, 32), nn.Softplus()]
    return nn.Sequential(*layers, nn.Linear(32, 5))


def torchvision(name: str, **options: Any) -> nn.Module:
    return import_torchvision().models.get_model(name, weights=None, **options)


IMAGE = (3, 64, 64)
NETWORKS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet50": (partial(torchvision, "resnet50"), IMAGE),
    "efficientnet_b0": (partial(torchvision, "efficientnet_b0"), IMAGE),
    "mobilenet_v3_small": (partial(torchvision, "mobilenet_v3_small"), IMAGE),
    "convnext_tiny": (partial(torchvision, "convnext_tiny"), IMAGE),
    "vit_b_16": (partial(torchvision, "vit_b_16", image_size=64), IMAGE),
    "swin_t": (partial(torchvision, "swin_t"), IMAGE),
    "a U-Net": (UNet, (3, 32, 32)),
    "a 1-D CNN": (sequence, (2, 64)),
    "an MLP": (perceptron, (20,)),
}


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def measure(name: str) -> str:
    """Return one line of the table."""
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    model = make().eval()
    randomise(model)
    model, inputs = model.double(), torch.randn(2, *shape, dtype=torch.float64)
    explainer = dmbp.DMBP(model, preset="fast", iterations=ITERATIONS)
    d = explainer.explain(inputs, target=[0, 1])
    alone = torch.cat([explainer.attribute(inputs[k : k + 1], target=k) for k in range(2)])
    with torch.no_grad():
        scores = model(inputs)[[0, 1], [0, 1]]
    total = d.positive_output + d.negative_output + d.nuisance_output
    finite = all(bool(torch.isfinite(t).all()) for t in (d.attribution, *vars(d.history).values()))
    net = explainer.linearizer.linearize(inputs, target=[0, 1])
    cells = [
        *(name, len(net.sites), "cpu" if plan_for(net).rows_known else "autograd", finite),
        *(f"{relative(total, scores):.0e}", f"{relative(alone, d.attribution):.0e}"),
    ]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), metavar="NETWORK")
    warnings.simplefilter("ignore")  # torchvision warns about its own models
    print("| network | sites | engine | finite | terms − score | alone − together |")
    print("| --- " * 6 + "|")
    for name in parser.parse_args().networks:
        print(measure(name), flush=True)


if __name__ == "__main__":
    main()
