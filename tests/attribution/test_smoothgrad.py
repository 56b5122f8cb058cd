"""SmoothGrad against Captum's NoiseTunnel."""

import pytest
import torch
from captum.attr import NoiseTunnel, Saliency
from torch import nn

from dmbp.attribution import METHODS
from tests.attribution.networks import images
from tests.tolerance import FLOAT64, relative


@pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require gradients")
def test_it_is_captums_noise_tunnel(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same noise, one image at a time, because ours shares the noise between images."""
    inputs, samples = images()[:1], 6
    generator = torch.Generator().manual_seed(0)
    noise = torch.stack(
        [torch.randn(inputs.shape[1:], generator=generator) for _ in range(samples)]
    )
    noise = noise.double() * 0.15 * (inputs.max() - inputs.min())
    monkeypatch.setattr(torch, "normal", lambda *_, **__: noise)
    tunnel = NoiseTunnel(Saliency(model))
    captums = tunnel.attribute(
        inputs, nt_type="smoothgrad", nt_samples=samples, stdevs=1.0, target=0, abs=False
    )
    ours = METHODS["smoothgrad"](model, samples=samples).attribute(inputs, target=0)
    assert relative(ours, captums * inputs) <= FLOAT64
