import pytest
import torch
from benchmarks.pass_counts import count
from torch import nn

import dmbp


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [("gradient", 2, 1), ("integrated_gradients", 51, 50), ("gradcam", 3, 0), ("random", 1, 0)],
)
def test_images_that_pass_the_network_are_counted(name: str, forward: int, backward: int) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3, 2), nn.ReLU(),
        nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    ).eval()  # fmt: skip
    images = torch.randn(1, 3, 32, 32)
    assert count(dmbp.methods()[name](network), network, images, 1) == (forward, backward)
