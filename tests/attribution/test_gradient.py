"""The gradient against Captum's, against the linear network's pullback, and where there is none."""

import pytest
import torch
from captum.attr import InputXGradient
from torch import Tensor, nn

import dmbp
from dmbp.attribution import METHODS
from dmbp.errors import ModelError
from tests import nets
from tests.attribution.networks import TARGET, attribute, images
from tests.tolerance import FLOAT64, relative


@pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require gradients")
def test_gradient_is_captums_and_the_pullback(model: nn.Module) -> None:
    inputs = images()
    ours = attribute("gradient", model, inputs)
    captums = InputXGradient(model).attribute(inputs, target=torch.tensor(TARGET))
    assert relative(ours, captums) <= FLOAT64
    pullback = dmbp.linearize(model, inputs, target=TARGET).pullback()
    assert relative(ours, pullback * inputs) <= FLOAT64


def test_a_curved_target_has_its_tangent(model: nn.Module) -> None:
    """The linear network of a probability has its value, and its gradient as the pullback."""

    def probability(outputs: Tensor) -> Tensor:
        return outputs.softmax(-1)[2]

    inputs = images()
    expected = model(inputs).softmax(1)[:, 2]
    net = dmbp.linearize(model, inputs, target=probability)
    torch.testing.assert_close(net.value(), expected)
    gradient = METHODS["gradient"](model).attribute(inputs, target=probability)
    assert relative(net.pullback() * inputs, gradient) <= FLOAT64
    d = dmbp.DMBP(model, iterations=3).explain(inputs, target=probability)
    total = d.positive_output + d.negative_output + d.nuisance_output
    torch.testing.assert_close(total, expected)


@pytest.mark.parametrize("name", ["gradient", "integrated_gradients", "smoothgrad", "blur_ig"])
def test_a_model_that_stops_gradients_is_refused(name: str) -> None:
    class Stopped(nets.VGGLike):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                return super().forward(x)

    with pytest.raises(ModelError, match="passes no gradient to its input"):
        METHODS[name](Stopped().eval()).attribute(torch.randn(1, 3, 16, 16), target=0)
