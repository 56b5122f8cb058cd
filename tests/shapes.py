"""Drawn shapes, and small networks that are trained to find them: a U-Net and a detector.

Both networks are made for 64 × 64 pixels and learn in seconds, so that tests can ask trained
networks about one of several shapes on an image.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

Shape = tuple[int, float, float, float]
"""A shape: its class, x and y of its middle, and its radius."""

Loss = Callable[[nn.Module, Tensor], Tensor]
"""Returns the loss of a model on the training images with these indices."""

SIDE = 64
CLASSES = ("background", "disc", "square", "cross")
STRIDES = (8, 16, 32)


def draw(places: list[Shape], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """An image with shapes, each (class, x, y, radius), and the class of each of its pixels."""
    y, x = torch.meshgrid(torch.arange(SIDE) + 0.5, torch.arange(SIDE) + 0.5, indexing="ij")
    image = 0.4 * torch.rand(3, 1, 1, generator=generator)
    image = image + 0.1 * torch.randn(3, SIDE, SIDE, generator=generator)
    labels = torch.zeros(SIDE, SIDE, dtype=torch.long)
    for index, left, top, radius in places:
        across, down = (x - left).abs(), (y - top).abs()
        inside = {
            1: across**2 + down**2 < radius**2,
            2: torch.maximum(across, down) < 0.85 * radius,
            3: (torch.minimum(across, down) < radius / 3) & (torch.maximum(across, down) < radius),
        }[index]
        colour = 0.5 + 0.5 * torch.rand(3, 1, generator=generator)
        image[:, inside] = colour + 0.05 * torch.randn(3, int(inside.sum()), generator=generator)
        labels[inside] = index
    return image, labels


def scene(
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, list[Shape]]:
    """An image with a shape in one to four of its quarters, its labels, and the shapes."""
    count = int(torch.randint(1, 5, (), generator=generator))
    places: list[Shape] = []
    for quarter in torch.randperm(4, generator=generator)[:count].tolist():
        index = int(torch.randint(1, len(CLASSES), (), generator=generator))
        radius, x, y = (torch.rand(3, generator=generator) * torch.tensor([3.0, 8, 8])).tolist()
        radius += 7
        places.append((index, 32 * (quarter % 2) + 12 + x, 32 * (quarter // 2) + 12 + y, radius))
    return *draw(places, generator), places


class UNet(nn.Module):
    """A U-Net with two levels below the image's."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.top = _block(3, width)
        self.middle = _block(width, 2 * width)
        self.bottom = _block(2 * width, 4 * width)
        self.up_middle = _block(6 * width, 2 * width)
        self.up_top = _block(3 * width, width)
        self.head = nn.Conv2d(width, len(CLASSES), 1)

    def forward(self, x: Tensor) -> Tensor:
        top = self.top(x)
        middle = self.middle(functional.max_pool2d(top, 2))
        bottom = self.bottom(functional.max_pool2d(middle, 2))
        up = functional.interpolate(bottom, scale_factor=2.0)
        up = self.up_middle(torch.cat([up, middle], 1))
        up = functional.interpolate(up, scale_factor=2.0)
        return self.head(self.up_top(torch.cat([up, top], 1)))


class Detector(nn.Module):
    """Predicts a box at each cell of three grids, as YOLOX does: (cells, 4 + 1 + classes)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _block(3, width), nn.MaxPool2d(2), _block(width, 2 * width), nn.MaxPool2d(2)
        )
        self.levels = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), _block(2 * width, 2 * width)) for _ in STRIDES
        )
        self.heads = nn.ModuleList(nn.Conv2d(2 * width, 4 + len(CLASSES), 1) for _ in STRIDES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        found: list[Tensor] = []
        for level, head in zip(self.levels, self.heads, strict=True):
            x = level(x)
            numbers = head(x).flatten(2).transpose(1, 2)
            found.append(torch.cat([numbers[..., :4], numbers[..., 4:].sigmoid()], 2))
        return torch.cat(found, 1)


def _block(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()
    )


@cache
def scenes(count: int = 256) -> tuple[Tensor, Tensor, list[list[Shape]]]:
    """Images to learn from, their labels and shapes."""
    generator = torch.Generator().manual_seed(0)
    drawn = [scene(generator) for _ in range(count)]
    images, labels, places = zip(*drawn, strict=True)
    return torch.stack(images), torch.stack(labels), list(places)


@cache
def trained_unet() -> nn.Module:
    """A U-Net that finds the shapes."""
    images, labels, _ = scenes()
    weights = torch.tensor([0.5, 1.0, 1.0, 1.0])

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return functional.cross_entropy(model(images[batch]), labels[batch], weights)

    return _train(UNet(), loss, steps=80)


@cache
def trained_detector() -> nn.Module:
    """A detector that finds the shapes: each belongs to the cell of the finest grid it lies in."""
    images, _, places = scenes()
    cells = SIDE // STRIDES[0]
    wanted = torch.zeros(len(images), sum((SIDE // k) ** 2 for k in STRIDES), 4 + len(CLASSES))
    for row, shapes in enumerate(places):
        for index, x, y, radius in shapes:
            column, line = int(x // STRIDES[0]), int(y // STRIDES[0])
            sides = torch.tensor(2 * radius / STRIDES[0]).log().item()
            box = torch.tensor([x / STRIDES[0] - column, y / STRIDES[0] - line, sides, sides])
            cell = wanted[row, line * cells + column]
            cell[:4], cell[4], cell[4 + index] = box, 1, 1

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        found, true = model(images[batch]), wanted[batch]
        is_object = true[..., 4] > 0
        objects = functional.binary_cross_entropy(found[..., 4], true[..., 4], reduction="sum")
        classes = functional.binary_cross_entropy(
            found[..., 5:][is_object], true[..., 5:][is_object], reduction="sum"
        )
        boxes = functional.l1_loss(found[..., :4][is_object], true[..., :4][is_object])
        return (objects + classes) / is_object.sum() + boxes

    return _train(Detector(), loss, steps=200)


def _train(model: nn.Module, loss: Loss, steps: int) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    images, *_ = scenes()
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 8e-3, total_steps=steps)
    for _ in range(steps):
        batch = torch.randint(len(images), (24,), generator=generator)
        optimiser.zero_grad()
        loss(model, batch).backward()
        optimiser.step()
        schedule.step()
    return model.eval()
