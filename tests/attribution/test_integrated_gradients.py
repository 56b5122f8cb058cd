"""Integrated gradients against Captum's, and against the change of the score they integrate."""

import torch
from captum.attr import IntegratedGradients
from torch import nn

from dmbp.attribution import METHODS
from tests.attribution.networks import TARGET, attribute, images
from tests.tolerance import FLOAT64, relative


def test_they_are_captums(model: nn.Module) -> None:
    inputs, start = images(), images()
    captums = IntegratedGradients(model).attribute(inputs, start, target=torch.tensor(TARGET))
    ours = METHODS["integrated_gradients"](model).attribute(inputs, start, target=TARGET)
    assert relative(ours, captums) <= FLOAT64


def test_they_add_up_to_the_change_of_the_score(model: nn.Module) -> None:
    """The finer the steps, the smaller Captum's convergence delta."""
    inputs = images()
    with torch.no_grad():
        change = (model(inputs) - model(torch.zeros_like(inputs)))[range(3), TARGET]
    coarse, fine = (
        attribute("integrated_gradients", model, inputs, steps=steps).flatten(1).sum(1) - change
        for steps in (5, 1000)
    )
    assert fine.abs().max() < 0.01 * change.abs().max()
    assert fine.abs().max() < coarse.abs().max()
