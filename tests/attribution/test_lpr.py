"""LPR against the gradient it starts from, and against its loss, computed here from its maps."""

import torch
from torch import Tensor, nn

from dmbp.attribution import METHODS
from dmbp.baseline import blur
from tests.attribution.networks import TARGET, attribute, images
from tests.tolerance import FLOAT64, relative


def test_without_iterations_it_is_the_gradient(model: nn.Module) -> None:
    inputs = images()
    plain = attribute("lpr", model, inputs, iterations=0)
    assert relative(plain, attribute("gradient", model, inputs)) <= FLOAT64


@torch.no_grad()
def losses(model: nn.Module, inputs: Tensor, maps: Tensor, *, area: float) -> Tensor:
    """Each image's loss, as the module's docstring defines it from the map."""
    softness, pixels = 0.1, maps.sum(1, keepdim=True)
    centred = pixels - pixels.mean((1, 2, 3), keepdim=True)
    deviation = pixels.std((1, 2, 3), keepdim=True, correction=0)
    mask = torch.sigmoid(centred / (softness * deviation))
    outputs, masked = model(inputs), model(mask * inputs + (1 - mask) * blur(inputs))
    change = (masked - outputs)[range(3), TARGET] / outputs.std(1)
    return change**2 + area * mask.mean((1, 2, 3))


def test_learning_lowers_the_loss(model: nn.Module) -> None:
    """The image masked by the learned map keeps more of the score, or shows less of the image."""
    inputs = images()
    plain = attribute("gradient", model, inputs)
    for area in (0.0, 1.0):
        method = METHODS["lpr"](model, area=area, iterations=25)
        learned = method.attribute(inputs, target=TARGET)
        before, after = (losses(model, inputs, maps, area=area) for maps in (plain, learned))
        assert after.sum() < 0.8 * before.sum()
