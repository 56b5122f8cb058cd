"""Guided GradCAM against its definition, the product of two other methods' maps."""

from torch import nn

from tests.attribution.networks import attribute, images
from tests.tolerance import FLOAT64, relative


def test_it_is_the_product(model: nn.Module) -> None:
    inputs = images()
    guided = attribute("guided_backprop", model, inputs)
    for layer in (None, "features.2"):
        regions = attribute("gradcam", model, inputs, layer=layer)
        ours = attribute("guided_gradcam", model, inputs, layer=layer)
        assert relative(ours, guided * regions) <= FLOAT64
