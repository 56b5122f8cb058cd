"""Captum's own metrics and NoiseTunnel, over our methods as they are."""

import pytest
import torch
from captum.attr import NoiseTunnel
from captum.metrics import infidelity, sensitivity_max
from torch import Tensor

from dmbp.attribution import METHODS, Method
from tests import nets

IMAGES = (2, 3, 16, 16)
OURS = {"dmbp": {"iterations": 4}, "gradient": {}, "gradcam": {}, "deeplift": {}}


def asked(name: str) -> tuple[nets.VGGLike, Method, Tensor]:
    model = nets.VGGLike().eval()
    return model, METHODS[name](model, **OURS[name]), torch.randn(IMAGES)


@pytest.mark.parametrize("name", OURS)
def test_infidelity(name: str) -> None:
    """It is what its definition gives for our maps."""
    model, method, inputs = asked(name)
    maps = method.attribute(inputs, target=1).expand_as(inputs).contiguous()
    step = 0.1 * torch.randn(IMAGES)
    with torch.no_grad():
        change = model(inputs)[:, 1] - model(inputs - step)[:, 1]
        expected = ((step * maps).flatten(1).sum(1) - change) ** 2
        found = infidelity(
            model, lambda x: (step, x - step), inputs, maps, target=1, n_perturb_samples=1
        )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("target", [1, [1, 2], torch.tensor([1, 2])])
@pytest.mark.parametrize("name", OURS)
def test_sensitivity(name: str, target: object) -> None:
    _, method, inputs = asked(name)
    found = sensitivity_max(method.attribute, inputs, target=target, n_perturb_samples=3)
    assert found.shape == (2,)
    assert torch.isfinite(found).all()
    assert (found > 0).any()


def test_a_map_that_does_not_look_is_not_sensitive() -> None:
    inputs = torch.randn(IMAGES)
    method = METHODS["random"](nets.VGGLike().eval())
    assert sensitivity_max(method.attribute, inputs, target=1).tolist() == [0, 0]


@pytest.mark.parametrize("name", OURS)
def test_noise_tunnel(name: str) -> None:
    """Without noise it is the map itself, or nothing where it is a variance."""
    _, method, inputs = asked(name)
    tunnel = NoiseTunnel(method)
    target = torch.tensor([1, 2])
    maps = method.attribute(inputs, target=target)
    options = {"nt_samples": 3, "stdevs": 0.0, "target": target}
    torch.testing.assert_close(tunnel.attribute(inputs, **options), maps, atol=1e-4, rtol=1e-3)
    spread = tunnel.attribute(inputs, nt_type="vargrad", **options)
    assert spread.abs().max() <= 1e-3 * maps.square().max()
    noisy = tunnel.attribute(inputs, nt_samples=4, nt_samples_batch_size=3, stdevs=0.2, target=1)
    assert noisy.shape == maps.shape


def test_other_inputs_go_through_captums_metrics() -> None:
    class Scaled(nets.VGGLike):
        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return super().forward(x * scale[:, None, None, None])

    model, inputs, scale = Scaled().eval(), torch.randn(IMAGES), torch.rand(2)
    method = METHODS["gradient"](model)
    found = sensitivity_max(
        method.attribute, inputs, target=1, additional_forward_args=scale, n_perturb_samples=2
    )
    assert torch.isfinite(found).all()
