"""Class activation maps against their papers' formulas, computed here with plain autograd."""

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dmbp.attribution.gradcam import FinerCAM, GradCAM, ScoreCAM
from dmbp.errors import InputError, TargetError
from dmbp.linear import rather_than
from tests.attribution.networks import TARGET, HookedNet, attribute, images
from tests.tolerance import FLOAT64, relative


def after(model: HookedNet, activation: Tensor) -> Tensor:
    """The outputs, computed from the activation of `features`."""
    return model.last(model.head(activation))


def activation_and_gradient(model: HookedNet, inputs: Tensor) -> tuple[Tensor, Tensor]:
    activation = model.features(inputs).detach().requires_grad_()
    score = after(model, activation)[range(3), TARGET].sum()
    return activation.detach(), torch.autograd.grad(score, activation)[0]


def enlarged(regions: Tensor, inputs: Tensor) -> Tensor:
    return functional.interpolate(regions, inputs.shape[2:], mode="bilinear")


def plus_plus(a: Tensor, g: Tensor) -> Tensor:
    """α = G² / (2 G² + G³ Σ A), for exp(y): the paper's Eq. 19 and 5, position by position."""
    weights = torch.zeros(a.shape[:2]).double()
    for row in range(a.shape[0]):
        for channel in range(a.shape[1]):
            total = a[row, channel].sum()
            for slope in g[row, channel].flatten():
                if slope != 0:
                    alpha = slope**2 / (2 * slope**2 + slope**3 * total)
                    weights[row, channel] += alpha * slope.clamp(min=0)
    return weights[:, :, None, None] * a


FORMULAS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gradcam": lambda a, g: g.mean((2, 3), keepdim=True) * a,
    "gradcam_plus_plus": plus_plus,
    "hirescam": lambda a, g: g * a,
    "layercam": lambda a, g: g.clamp(min=0) * a,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_the_formula(name: str, model: HookedNet) -> None:
    inputs = images()
    weighted = FORMULAS[name](*activation_and_gradient(model, inputs)).sum(1, keepdim=True)
    assert relative(attribute(name, model, inputs), enlarged(weighted.relu(), inputs)) <= FLOAT64
    signed = attribute(name, model, inputs, signed=True)
    assert relative(signed, enlarged(weighted, inputs)) <= FLOAT64


def test_score_cam_is_a_loop_over_channels(model: HookedNet) -> None:
    """w = softmax_c y(x ⊙ H_c): the image is seen through one normalised channel at a time."""
    inputs, channels = images(), 8
    activation = model.features(inputs).detach()
    expected = []
    for image, maps, target in zip(inputs, activation, TARGET, strict=True):
        scores = []
        for k in range(channels):
            mask = enlarged(maps[None, k : k + 1], inputs)
            mask = (mask - mask.min()) / (mask.max() - mask.min())
            scores.append(model(image[None] * mask)[0, target].detach())
        weights = torch.stack(scores).softmax(0)
        expected.append((weights[:, None, None] * maps).sum(0, keepdim=True).relu())
    assert (
        relative(attribute("scorecam", model, inputs), enlarged(torch.stack(expected), inputs))
        <= FLOAT64
    )


def test_score_cam_of_a_few_channels(model: HookedNet) -> None:
    """The channels that vary most are run, and the others have no weight."""
    inputs = images()[:1]
    kept = model.features(inputs)[0].flatten(1).var(1).topk(3).indices.tolist()

    few = ScoreCAM(model, channels=3).attribute(inputs, target=0)
    activation = model.features(inputs).detach()[0, sorted(kept)]
    scores = []
    for own in activation:
        mask = enlarged(own[None, None], inputs)
        mask = (mask - mask.min()) / (mask.max() - mask.min())
        scores.append(model(inputs * mask)[0, 0].detach())
    weights = torch.stack(scores).softmax(0)
    expected = (weights[:, None, None] * activation).sum(0)[None, None]
    assert relative(few, enlarged(expected, inputs)) <= FLOAT64
    with pytest.raises(InputError, match="channels must be from 1"):
        ScoreCAM(model, channels=0)


def test_hirescam_adds_up_to_the_score(model: HookedNet) -> None:
    """All that follows `features` is linear at x: the map plus what later biases add is the score.

    Resizing changes sums, so images are as large as the layer.
    """
    model.features[3] = nn.Identity()
    model.head[0] = nn.AdaptiveMaxPool2d(4)
    model.eval()
    inputs = images()
    found = attribute("hirescam", model, inputs, signed=True, layer="features").sum((1, 2, 3))
    before = nn.Sequential(*model.head[:3])(model.features(inputs))
    biases = (before > 0).double() * model.last.weight[TARGET] @ model.head[2].bias
    expected = model(inputs)[range(3), TARGET] - biases - model.last.bias[TARGET]
    assert relative(found, expected.detach()) <= FLOAT64


def test_several_layers_are_averaged(model: HookedNet) -> None:
    inputs, names = images(), ["features.2", "features"]
    alone = [attribute("layercam", model, inputs, layer=name) for name in names]
    scaled = [maps / maps.amax((1, 2, 3), keepdim=True) for maps in alone]
    expected = torch.stack(scaled).mean(0)
    for layer in (names, "features.2, features"):
        assert relative(attribute("layercam", model, inputs, layer=layer), expected) <= FLOAT64
    cam = GradCAM(model, layer=names)
    cam.attribute(inputs, target=TARGET)
    assert str(cam.used_layer) == "features.2, features (16×16)"


def test_finer_cam_is_gradcam_of_the_difference(model: HookedNet) -> None:
    inputs = images()
    outputs = model(inputs).detach()
    for k, target in enumerate(TARGET):
        one = inputs[k : k + 1]
        difference = rather_than(target, "rivals", outputs=outputs[k])
        expected = GradCAM(model, signed=True).attribute(one, target=difference)
        found = FinerCAM(model, signed=True).attribute(one, target=target)
        assert relative(found, expected) <= FLOAT64
    half = {0: 1.0, 3: -0.25, 4: -0.25}
    expected = GradCAM(model, signed=True).attribute(inputs, target=half)
    names = ("cat", "dog", "cow", "old sheep", "horse")
    for rivals in ([3, 4], "sheep, horse", ("sheep", 4), "3,4"):
        cam = FinerCAM(model, rivals=rivals, strength=0.5, classes=names, signed=True)
        assert relative(cam.attribute(inputs, target=0), expected) <= FLOAT64


def test_rivals_that_there_are_not(model: HookedNet) -> None:
    inputs = images()
    with pytest.raises(TargetError, match="class 7 is out of range"):
        FinerCAM(model, rivals=7).attribute(inputs, target=0)
    with pytest.raises(TargetError, match="have no names, so 'dog' cannot be looked up"):
        FinerCAM(model, rivals="dog").attribute(inputs, target=0)
    with pytest.raises(TargetError, match="needs a rival: a class that the target itself has no"):
        FinerCAM(model, rivals=0).attribute(inputs, target=0)
    with pytest.raises(InputError, match="strength must be from 0"):
        FinerCAM(model, strength=-1.0)
