"""Blur integrated gradients: the blur against SciPy's, the sum against the change of the score."""

import torch
from scipy.ndimage import gaussian_filter
from torch import nn

from dmbp.attribution.blur_ig import BlurIG, gaussian_blur
from tests.attribution.networks import TARGET, images


def test_the_blur_is_scipys() -> None:
    inputs = images(20)
    for sigma in (0.0, 0.4, 2.0, 11.0):
        scipys = gaussian_filter(inputs.numpy(), (0, 0, sigma, sigma), mode="constant")
        torch.testing.assert_close(gaussian_blur(inputs, sigma), torch.from_numpy(scipys))


def test_maps_add_up_to_the_change_of_the_score(model: nn.Module) -> None:
    """From the blurred image to the sharp one."""
    inputs = gaussian_blur(images(), 1.0)
    maps = BlurIG(model, max_sigma=8.0, steps=1000).attribute(inputs, target=TARGET)
    with torch.no_grad():
        change = (model(inputs) - model(gaussian_blur(inputs, 8.0)))[range(3), TARGET]
    assert (maps.flatten(1).sum(1) - change).abs().max() < 0.02 * change.abs().max()


def test_square_roots_of_the_blur(model: nn.Module) -> None:
    even, rooted = (
        BlurIG(model, max_sigma=9.0, steps=3, square_root=square_root).sigmas()
        for square_root in (False, True)
    )
    assert even == [0.0, 3.0, 6.0, 9.0]
    assert rooted == [0.0, 3.0**0.5, 6.0**0.5, 3.0]
