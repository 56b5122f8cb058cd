"""Stages of token networks: the layer that is taken, and its layout against one made by hand."""

import pytest
import torch
from torch import Tensor, nn

from dmbp.attribution import METHODS
from dmbp.attribution.gradcam import GradCAM
from dmbp.attribution.guided_backprop import GuidedGradCAM
from dmbp.attribution.stage import Stage, Stages
from dmbp.errors import InputError
from dmbp.linear import Linearizer
from tests.attribution.token_networks import TOKEN_NETWORKS, TokenNetwork, tokens, vit
from tests.tolerance import FLOAT64, relative


def stages_of(model: nn.Module, images: Tensor) -> Stages:
    linearizer = Linearizer(model)
    net = linearizer.linearize(images, target=0)
    return Stages(net, linearizer.positions(images))


def output_of(model: nn.Module, name: str, images: Tensor) -> Tensor:
    """The output of a module when the model runs as it is."""
    seen: list[Tensor] = []
    handle = model.get_submodule(name).register_forward_hook(lambda *call: seen.append(call[-1]))
    with handle, torch.no_grad():
        model(images)
    return seen[-1]


def name_and_size(stage: Stage) -> tuple[str, tuple[int, int]]:
    return stage.layer.name, (stage.layer.height, stage.layer.width)


@pytest.mark.parametrize("network", TOKEN_NETWORKS.values(), ids=TOKEN_NETWORKS)
def test_the_last_stage(network: TokenNetwork) -> None:
    """It has the name, the size and the layout of the table, and its name gives the same map."""
    model, images = network.model(), network.images(rows=2)
    stages = stages_of(model, images)
    stage = stages.last()
    assert name_and_size(stage) == (network.layer, network.grid)
    by_hand = network.lay_out(output_of(model, network.layer, images))
    assert relative(stage.activation, by_hand) <= FLOAT64
    named = stages.named(network.layer)
    assert torch.equal(named.activation, stage.activation)
    assert torch.equal(named.gradient, stage.gradient)
    assert stage.is_read
