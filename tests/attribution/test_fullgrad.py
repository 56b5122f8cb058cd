"""FullGrad's parts against the score they add up to, and its map against one worked out by hand."""

import pytest
import torch
from torch import nn

import dmbp
from dmbp.attribution import METHODS
from dmbp.attribution.fullgrad import full_gradient
from tests import nets
from tests.attribution.networks import HookedNet, images, torchvision_network
from tests.tolerance import FLOAT64, relative


def largest_difference(model: nn.Module, side: int) -> float:
    inputs = images(side)[:1]
    parts = full_gradient(dmbp.linearize(model, inputs, target=1))
    total = (parts.input_gradient * inputs).flatten(1).sum(1)
    total = total + sum(part.flatten(1).sum(1) for part in parts.contributions)
    with torch.no_grad():
        return relative(total, model(inputs)[:, 1])


@pytest.mark.parametrize("net", [*nets.IMAGE_NETWORKS, nets.SmoothNet, HookedNet])
def test_the_parts_are_the_whole_score(net: type[nn.Module]) -> None:
    assert largest_difference(net().double().eval(), side=16) <= FLOAT64


@pytest.mark.parametrize("name", ["resnet18", "googlenet"])
def test_the_parts_are_the_whole_score_of_torchvisions(name: str) -> None:
    assert largest_difference(torchvision_network(name), side=64) <= FLOAT64


def test_a_map_by_hand() -> None:
    """One convolution with a bias: |w x| and |b w'| scaled to [0, 1], added."""
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.Flatten(), nn.Linear(4, 1)).double()
    nn.init.constant_(model[0].weight, 2.0)
    nn.init.constant_(model[0].bias, 1.0)
    model[3].weight.data = torch.tensor([[1.0, -1.0, 0.5, 4.0]]).double()
    inputs = torch.tensor([[[[1.0, 2.0], [3.0, -4.0]]]]).double()
    # Gates 1 1 1 0; input · gradient 2 −4 3 0; bias · gradient 1 −1 0.5 0.
    expected = torch.tensor([2.0, 4.0, 3.0, 0.0]) / 4 + torch.tensor([1.0, 1.0, 0.5, 0.0])
    maps = METHODS["fullgrad"](model.eval()).attribute(inputs, target=0)
    torch.testing.assert_close(maps.flatten(), expected.double())
