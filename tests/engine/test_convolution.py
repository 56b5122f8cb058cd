"""Transposes of convolutions, against autograd's."""

import pytest
import torch

from dmbp.engine.plan.convolution import Convolution
from dmbp.engine.plan.kernels import Kernels


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [
        ((3, 3), (1, 1), (1, 1), (1, 1)),
        ((7, 5), (2, 1), (3, 0), (1, 1)),
        ((3, 3), (2, 2), (2, 1), (2, 2)),
    ],
)
def test_to_the_channels_of_an_image(
    channels: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> None:
    """As a product and a sum of windows, which GPUs are given."""
    settings = [list(part) for part in (stride, padding, dilation)]
    example = torch.randn(2, channels, 13, 12, dtype=torch.float64)
    weight = torch.randn(6, channels, *kernel, dtype=torch.float64)
    convolution = Convolution(weight, None, *settings, 1, example=example, kernels=Kernels())
    inputs = torch.cat([example, example]).requires_grad_()
    outputs = torch.conv2d(inputs, weight, None, *settings)
    gradient = torch.randn_like(outputs)
    (expected,) = torch.autograd.grad(outputs, inputs, gradient)
    folded = convolution._folded(weight)  # pyright: ignore[reportPrivateUsage]
    assert torch.allclose(folded(gradient, None), expected, atol=1e-12)
    assert torch.allclose(convolution.transpose(gradient), expected, atol=1e-12)
