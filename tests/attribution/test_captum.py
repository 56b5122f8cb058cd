"""Captum's metrics and NoiseTunnel take our methods as they are."""

import pytest
import torch
from captum.attr import NoiseTunnel
from captum.metrics import infidelity, sensitivity_max
from torch import Tensor, nn

from dmbp.attribution import METHODS, Method
from tests import nets
from tests.tolerance import FLOAT64

IMAGES = (2, 3, 16, 16)
OURS = {"dmbp": {"iterations": 4}, "gradient": {}, "gradcam": {"signed": True}, "deeplift": {}}


def make(name: str) -> tuple[nets.VGGLike, Method, Tensor]:
    model = nets.VGGLike().double().eval()
    return model, METHODS[name](model, **OURS[name]), torch.randn(IMAGES, dtype=torch.float64)


def remove_everything(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The share of each pixel that is removed, and what remains."""
    return torch.ones_like(inputs), torch.zeros_like(inputs)


@pytest.mark.parametrize("name", ["gradient", "deeplift", "integrated_gradients"])
def test_infidelity_of_maps_that_add_up(name: str) -> None:
    """Without biases their sum is the score, which is lost when all pixels are removed."""
    model, inputs = nets.VGGLike().double().eval(), torch.randn(IMAGES, dtype=torch.float64)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.zeros_(module.bias)
    target = torch.tensor([1, 3])
    maps = METHODS[name](model).attribute(inputs, target=target)
    score = model(inputs).detach()[range(2), target]

    def score_of(attribution: Tensor) -> Tensor:
        return infidelity(model, remove_everything, inputs, attribution, target=target)

    assert (score_of(maps) <= FLOAT64 * score**2).all()
    torch.testing.assert_close(score_of(maps / 2), (score / 2) ** 2)


@pytest.mark.parametrize("target", [1, [1, 2], torch.tensor([1, 2])])
@pytest.mark.parametrize("name", OURS)
def test_sensitivity(name: str, target: object) -> None:
    """Captum explains two noisy copies of each image in one batch; here each is explained alone."""
    _, method, inputs = make(name)
    noise = 0.05 * torch.randn(2, *IMAGES, dtype=torch.float64)  # image, copy
    found = sensitivity_max(
        method.attribute,
        inputs,
        lambda repeated: repeated + noise.flatten(0, 1),
        target=target,
        n_perturb_samples=2,
    )
    for k, own in enumerate([1, 1] if isinstance(target, int) else [1, 2]):
        plain = method.attribute(inputs[k : k + 1], target=own)
        changes = [
            method.attribute(inputs[k : k + 1] + copy, target=own) - plain for copy in noise[k]
        ]
        expected = max(change.norm() for change in changes) / plain.norm()
        assert expected > 0
        torch.testing.assert_close(found[k], expected)


def test_a_map_that_does_not_look_is_not_sensitive() -> None:
    inputs = torch.randn(IMAGES)
    method = METHODS["random"](nets.VGGLike().eval())
    assert sensitivity_max(method.attribute, inputs, target=1).tolist() == [0, 0]


@pytest.mark.parametrize("name", OURS)
def test_noise_tunnel(name: str) -> None:
    """Without noise its mean is the map itself, and its variance zero; with noise neither is."""
    _, method, inputs = make(name)
    tunnel = NoiseTunnel(method)
    target = torch.tensor([1, 2])
    maps = method.attribute(inputs, target=target)
    options = {"nt_samples": 3, "target": target}
    torch.testing.assert_close(tunnel.attribute(inputs, stdevs=0.0, **options), maps)
    spread = tunnel.attribute(inputs, nt_type="vargrad", stdevs=0.0, **options)
    assert spread.abs().max() <= FLOAT64 * maps.square().max()
    noisy = tunnel.attribute(inputs, nt_samples_batch_size=2, stdevs=0.2, **options)
    assert noisy.shape == maps.shape
    assert not torch.allclose(noisy, maps)


def test_other_inputs_go_through_captums_metrics() -> None:
    """Each noisy copy keeps the scale of the image it was made from."""

    class Scaled(nets.VGGLike):
        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return super().forward(x * scale[:, None, None, None])

    model = Scaled().double().eval()
    inputs, scale = torch.randn(IMAGES, dtype=torch.float64), torch.tensor([0.2, 3.0]).double()
    noise = 0.05 * torch.randn(IMAGES, dtype=torch.float64)
    method = METHODS["gradient"](model)
    found = sensitivity_max(
        method.attribute,
        inputs,
        lambda images: images + noise,
        target=1,
        additional_forward_args=scale,
        n_perturb_samples=1,
    )
    for k in range(2):
        before, after = (
            method.attribute(x[k : k + 1], target=1, additional_forward_args=scale[k : k + 1])
            for x in (inputs, inputs + noise)
        )
        torch.testing.assert_close(found[k], (after - before).norm() / before.norm())
