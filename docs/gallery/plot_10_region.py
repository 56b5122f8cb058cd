"""
A region of a segmentation
==========================

A network that marks discs. The question is not "which class" but "why here".
"""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import dmbp
from dmbp.targets import Region

torch.manual_seed(0)
SIDE = 40


def scene(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy images with a bright disc and a bright square each, and masks of the discs."""
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    places = torch.randint(8, SIDE - 8, (count, 4, 1, 1))
    discs = (y - places[:, 0]) ** 2 + (x - places[:, 1]) ** 2 < 36
    squares = torch.maximum((y - places[:, 2]).abs(), (x - places[:, 3]).abs()) < 5
    images = 0.15 * torch.randn(count, 3, SIDE, SIDE) + 0.3
    return images + 0.5 * (discs | squares)[:, None], (discs & ~squares)[:, None].float()


network = nn.Sequential(
    nn.Conv2d(3, 12, 7, padding=3), nn.ReLU(), nn.Conv2d(12, 12, 7, padding=3), nn.ReLU(),
    nn.Conv2d(12, 1, 5, padding=2),
)  # fmt: skip
optimizer = torch.optim.Adam(network.parameters(), 4e-3)
for _ in range(60):
    images, masks = scene(16)
    loss = binary_cross_entropy_with_logits(network(images), masks)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
network.eval()

# %%
# Why does the network mark a disc here?

torch.manual_seed(11)
images, masks = scene(1)
rows, columns = masks[0, 0].nonzero().unbind(1)
box = (int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1)
maps = dmbp.DMBP(network).attribute(images, target=Region(0, box=box))
figure = dmbp.render.show(images[0].clamp(0, 1), maps, caption="the disc")
