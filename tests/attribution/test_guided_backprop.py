"""Guided backpropagation against Captum's, also on networks that Captum cannot follow."""

import pytest
import torch
from captum.attr import GuidedBackprop
from torch import Tensor, nn

from tests import nets
from tests.attribution.networks import TARGET, attribute, images
from tests.tolerance import FLOAT64, relative

pytestmark = pytest.mark.filterwarnings(
    "ignore:Input Tensor 0 did not already require gradients",
    "ignore:Setting .* hooks",
)


def captums(model: nn.Module, inputs: Tensor) -> Tensor:
    with pytest.warns(UserWarning, match="backward hooks"):
        return GuidedBackprop(model).attribute(inputs, target=torch.tensor(TARGET))


def test_it_is_captums(model: nn.Module) -> None:
    inputs = images()
    ours = attribute("guided_backprop", model, inputs)
    assert relative(ours, captums(model, inputs) * inputs) <= FLOAT64


def test_reused_activations() -> None:
    """Captum's is compared on the same weights, with a module for each activation."""
    reused = nets.ReusedNet().double().eval()
    unrolled = nn.Sequential(
        *[layer for conv in reused.convs for layer in (conv, nn.ReLU())],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        reused.fc,
    )
    inputs = images()
    ours = attribute("guided_backprop", reused, inputs)
    assert relative(ours, captums(unrolled, inputs) * inputs) <= FLOAT64


def test_functional_activations() -> None:
    functional = nets.FunctionalNet().double().eval()
    convolutions = (functional.a, functional.b, functional.c)
    hooked = nn.Sequential(
        *[layer for conv in convolutions for layer in (conv, nn.ReLU())],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        functional.fc,
    )
    inputs = images()
    ours = attribute("guided_backprop", functional, inputs)
    assert relative(ours, captums(hooked, inputs) * inputs) <= FLOAT64
