"""DeepLift against Captum's where that works, and against the change of the score everywhere."""

import pytest
import torch
from captum.attr import DeepLift
from torch import nn

from dmbp.attribution import METHODS
from dmbp.errors import InexactCapture
from tests import nets
from tests.attribution.networks import TARGET, HookedNet, images, torchvision_network
from tests.tolerance import FLOAT64, relative


@pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require gradients")
@pytest.mark.filterwarnings("ignore:Setting .* hooks")
def test_it_is_captums_where_captums_works() -> None:
    """Not with max-pooling: there Captum's sum misses the score's change, and ours does not."""
    inputs, start = images(), images()
    model = HookedNet(nn.AvgPool2d).double().eval()
    captums = DeepLift(model).attribute(inputs, start, target=torch.tensor(TARGET))
    ours = METHODS["deeplift"](model).attribute(inputs, start, target=TARGET)
    assert relative(ours, captums) <= FLOAT64


@pytest.mark.parametrize(
    "net",
    [*(n for n in nets.IMAGE_NETWORKS if n not in nets.WITH_PRODUCTS), nets.SmoothNet, HookedNet],
)
def test_it_adds_up_on_every_network(net: type[nn.Module]) -> None:
    model, inputs, start = net().double().eval(), images(), images()
    maps = METHODS["deeplift"](model).attribute(inputs, start, target=TARGET)
    with torch.no_grad():
        change = (model(inputs) - model(start))[range(3), TARGET]
    assert relative(maps.flatten(1).sum(1), change) <= FLOAT64


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "googlenet"])
def test_it_adds_up_on_torchvisions(name: str) -> None:
    model = torchvision_network(name)
    inputs = images(64)[:1]
    maps = METHODS["deeplift"](model).attribute(inputs, target=1)
    with torch.no_grad():
        score, start = (model(x)[:, 1] for x in (inputs, torch.zeros_like(inputs)))
    # Relative to the score, because random weights may hardly change it.
    assert relative(maps.flatten(1).sum(1) + start, score) <= FLOAT64


@pytest.mark.parametrize("net", nets.WITH_PRODUCTS)
def test_products_of_activations_are_refused(net: type[nn.Module]) -> None:
    with pytest.raises(InexactCapture, match=r"multiplies or compares activations.*use integrated"):
        METHODS["deeplift"](net().double().eval()).attribute(images(), target=0)


def test_a_comparison_written_by_hand_is_refused() -> None:
    with pytest.raises(InexactCapture, match=r"use torch\.relu"):
        METHODS["deeplift"](nets.ReLUByComparison().double().eval()).attribute(images(), target=0)
