"""A small network that is trained on drawn images, and its images."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = torch.tensor([0, 1])


def network() -> nn.Sequential:
    """Batch norms, one of them frozen, dropout, and a parameter that is not trained."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 2),
    )
    model[4].eval()
    model[0].bias.requires_grad_(False)
    return model


def images() -> Tensor:
    """Two images: a red square at the top left, and a green one at the bottom right."""
    generator = torch.Generator().manual_seed(0)
    drawn = 0.2 * torch.rand(2, 3, 16, 16, generator=generator)
    drawn[0, 0, 2:8, 2:8] += 0.7
    drawn[1, 1, 8:14, 8:14] += 0.7
    return drawn


def train(
    model: nn.Module,
    steps: int,
    *,
    after: Callable[[int], object] = lambda _: None,
    optimiser: torch.optim.Optimizer | None = None,
) -> None:
    """Train for some steps; `after` is called with the number of steps so far, first with 0."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = optimiser or torch.optim.SGD(trained, lr=0.2)
    after(0)
    for step in range(1, steps + 1):
        optimiser.zero_grad()
        functional.cross_entropy(model(images()), CLASSES).backward()
        optimiser.step()
        after(step)
