"""Baselines: the blur against SciPy's, and every reference on inputs of any kind."""

import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from dmbp.baseline import baseline_for, blur, blur_weights
from dmbp.errors import InputError


def test_the_blur_is_rises() -> None:
    """11 × 11 and nearly a box, as SciPy filters it: the weights differ by a factor of 1.14."""
    delta = torch.zeros(11, 11, dtype=torch.float64)
    delta[5, 5] = 1
    scipys = torch.from_numpy(gaussian_filter(delta.numpy(), 5))  # borders reflect by default
    ours = torch.outer(blur_weights(), blur_weights())
    torch.testing.assert_close(ours, scipys)
    assert float(ours.max() / ours.min()) == pytest.approx(1.14, abs=0.005)


def test_images_are_blurred_channel_by_channel() -> None:
    images = torch.zeros(2, 3, 15, 15, dtype=torch.float64)
    images[1, 2, 7, 7] = 1
    kernel = torch.outer(blur_weights(), blur_weights())
    torch.testing.assert_close(blur(images)[1, 2, 2:13, 2:13], kernel)
    assert not blur(images)[0].any()
    assert not blur(images)[1, :2].any()


@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (2, 3, 6), (2, 5)])
def test_references_of_inputs_of_any_kind(shape: tuple[int, ...]) -> None:
    inputs = torch.randn(shape)
    for zero in (None, "zero"):
        assert torch.equal(baseline_for(inputs, zero), torch.zeros(shape))
    mean = baseline_for(inputs, "mean")
    axes = tuple(range(2, inputs.dim())) or (1,)
    torch.testing.assert_close(mean, inputs.mean(axes, keepdim=True).expand(shape))
    assert torch.equal(baseline_for(inputs, torch.ones(())), torch.ones(shape))


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("grey", "reference must be 'zero', 'blur', 'mean', a tensor or None, not 'grey'"),
        (torch.full((1,), torch.nan), "the reference contains NaN or infinity"),
        (torch.zeros(3), r"of shape \(3,\) does not fit inputs of shape \(2, 5\)"),
        ("blur", r"needs images .*, signals .* or volumes, not inputs of shape \(2, 5\)"),
    ],
)
def test_references_that_are_refused(reference: str | Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        baseline_for(torch.randn(2, 5), reference)
