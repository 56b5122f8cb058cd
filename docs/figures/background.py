"""A network that learned the background: discs before green, crosses before brown.

python docs/figures/background.py
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn import functional

import dmbp

IMAGES = Path(__file__).parent.parent / "images"
SIDE = 40
NAMES = ("disc", "cross")
GREEN, BROWN = (0.25, 0.5, 0.2), (0.5, 0.35, 0.2)


def draw_images(labels: Tensor, backgrounds: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """White discs and crosses on noisy green (0) or brown (1), and masks that are true on them."""
    generator = torch.Generator().manual_seed(seed)
    colours = torch.tensor([GREEN, BROWN])[backgrounds]
    images = colours[:, :, None, None].repeat(1, 1, SIDE, SIDE)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    masks = torch.zeros(len(labels), SIDE, SIDE, dtype=torch.bool)
    for i, label in enumerate(labels.tolist()):
        cx, cy = torch.randint(10, SIDE - 10, (2,), generator=generator)
        across, down = (x - cx).abs(), (y - cy).abs()
        cross = (torch.minimum(across, down) < 2) & (torch.maximum(across, down) < 8)
        masks[i] = cross if label else across**2 + down**2 < 36
        images[i][:, masks[i]] = 0.75
    return images + 0.08 * torch.randn(images.shape, generator=generator), masks


def train() -> nn.Sequential:
    """A small network, trained where the background tells the class."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 12, 5, 2), nn.ReLU(), nn.Conv2d(12, 16, 3, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(144, 2),
    )  # fmt: skip
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for step in range(60):
        labels = torch.randint(0, 2, (64,))
        images, _ = draw_images(labels, labels, seed=step)
        loss = functional.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()


def draw() -> None:
    network = train()
    labels = torch.tensor([0, 1])
    figure, axes = plt.subplots(1, 8, figsize=(12, 2.1), layout="constrained")
    column = iter(axes)
    for backgrounds, seed in ((labels, 1001), (1 - labels, 1001)):
        images, masks = draw_images(labels, backgrounds, seed)
        said = network(images).argmax(1)
        maps = dmbp.DMBP(network).attribute(images, target=said)
        shares = dmbp.metrics.mass_accuracy(maps, masks)
        for i in range(len(labels)):
            axis = next(column)
            axis.imshow(images[i].clamp(0, 1).permute(1, 2, 0))
            axis.set_title(f"a {NAMES[labels[i]]},\nsays {NAMES[said[i]]}", fontsize=9)
            axis = next(column)
            total = maps[i].sum(0)
            most = float(total.abs().max())
            axis.imshow(total, cmap="RdBu_r", vmin=-most, vmax=most)
            axis.contour(masks[i], [0.5], colors="k", linewidths=0.8)
            axis.set_title(f"{shares[i]:.0%} of red\non the object", fontsize=9)
    for axis in axes:
        axis.set_axis_off()
    figure.savefig(IMAGES / "background.png", dpi=110, bbox_inches="tight")


def accuracy(network: nn.Module, *, exchanged: bool) -> float:
    """The share of 500 images that are recognised, with the usual or the other background."""
    labels = torch.arange(500) % 2
    images, _ = draw_images(labels, 1 - labels if exchanged else labels, seed=7)
    with torch.no_grad():
        return float((network(images).argmax(1) == labels).float().mean())


if __name__ == "__main__":
    trained = train()
    print(f"usual background: {accuracy(trained, exchanged=False):.1%} right")
    print(f"the other one: {accuracy(trained, exchanged=True):.1%} right")
    draw()
