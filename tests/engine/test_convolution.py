"""The plan's convolutions and their transposes, against autograd's."""

import pytest
import torch

from dmbp.engine.plan.convolution import Convolution, ConvolutionSettings, folded_transpose
from dmbp.engine.plan.kernels import Kernels


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [
        ((3, 3), [1, 1], [1, 1], [1, 1]),
        ((7, 5), [2, 1], [3, 0], [1, 1]),
        ((3, 3), [2, 2], [2, 1], [2, 2]),
    ],
)
def test_transposes_to_an_image_match_autograd(
    channels: int,
    kernel: tuple[int, int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> None:
    """Also the folded matrix product, which only GPUs use."""
    settings: ConvolutionSettings = (stride, padding, dilation, 1)
    example = torch.randn(2, channels, 13, 12, dtype=torch.float64)
    weight = torch.randn(6, channels, *kernel, dtype=torch.float64)
    convolution = Convolution(weight, None, *settings, example=example, kernels=Kernels())
    inputs = torch.cat([example, example]).requires_grad_()
    outputs = torch.conv2d(inputs, weight, None, *settings)
    gradient = torch.randn_like(outputs)
    (expected,) = torch.autograd.grad(outputs, inputs, gradient)
    folded = folded_transpose(weight, settings, (13, 12))
    assert torch.allclose(folded(gradient, None), expected, atol=1e-12)
    assert torch.allclose(convolution.transpose(gradient), expected, atol=1e-12)
