"""How fast piecewise approximations converge: `python -m benchmarks.pieces`.

Prints the error of networks with random weights, in float64, whose tanh or sigmoid activations are
replaced by k linear pieces, for growing k.
"""

from itertools import pairwise

import torch
from torch import nn

import dmbp

COUNTS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
ACTIVATIONS = {"tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


def network(activation: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    widths = (3, 16, 32, 32)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1), activation(), nn.AvgPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(512, 64), activation(), nn.Linear(64, 10)]
    return nn.Sequential(*layers).double().eval()


def main() -> None:
    torch.manual_seed(1)
    images = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    print("| pieces | " + " | ".join(ACTIVATIONS) + " |")
    print("| --- " * (1 + len(ACTIVATIONS)) + "|")
    for count in COUNTS:
        nets = [
            dmbp.linearize(network(activation), images, target=0, smooth=dmbp.Pieces(count))
            for activation in ACTIVATIONS.values()
        ]
        print(f"| {count} | " + " | ".join(f"{net.approximation_error:.1e}" for net in nets) + " |")


if __name__ == "__main__":
    main()
