"""Noisy linear imputation: removed pixels become the weighted means of their eight neighbours.

A removed pixel u satisfies, with weights w of 1/6 for the four direct neighbours and 1/12 for the
four diagonal ones,

    Σ w · u = Σ w · neighbour               over the neighbours that are inside the image,

where neighbours may be removed pixels too. All equations of an image are solved together, and
Gaussian noise is added to the removed pixels. Such an image shows less of the removed region's
outline than a blurred or grey one, from which a network can read the class.

    >>> mask = torch.zeros(1, 1, 8, 8, dtype=torch.bool)
    >>> mask[..., 2:5, 3:6] = True
    >>> imputed = linear_imputation(images, mask)
    >>> torch.equal(imputed[:, :, ~mask[0, 0]], images[:, :, ~mask[0, 0]])
    True

The matrix is symmetric and positive definite, so that conjugate gradients solve many images at once
without building it. They are preconditioned by a multigrid cycle, with which the number of
iterations does not grow with the removed region: 13 for any mask of 224 × 224 pixels, in place of
450 without.

Rong, Leemann, Borisov, Kasneci and Kasneci, "A Consistent and Efficient Evaluation Strategy for
Attribution Methods", ICML 2022 (ROAD).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from dmbp.baseline import standard_normal
from dmbp.errors import InputError

NOISE = 0.01
"""The standard deviation of the noise, in units of the inputs, as in the paper."""

TOLERANCE = 1e-5
"""The largest residual of any equation, relative to the image's largest value. At 224 × 224, pixels
are then within 2e-4 of the exact solution, a fiftieth of the noise's standard deviation."""

MOST_ITERATIONS = 200

DAMPING = 0.8
"""The damping of the Jacobi steps that smooth at every level."""


@torch.no_grad()
def linear_imputation(
    inputs: Tensor, mask: Tensor, *, noise: float = NOISE, tolerance: float = TOLERANCE
) -> Tensor:
    """Return images in which removed pixels are imputed from their surroundings.

    Args:
        inputs: Images (images, channels, height, width).
        mask: True where pixels are removed, (images, 1, height, width). An image without any
            remaining pixel gets its channels' means.
        noise: The standard deviation of the noise that is added to removed pixels. The numbers
            drawn are the same for every image, so that a result does not depend on its batch.
        tolerance: The largest residual, relative to the image's largest value.

    Returns:
        Images of the same shape.

    Raises:
        InputError: If the inputs are not images.
    """
    if inputs.dim() != 4:
        raise InputError(
            "linear imputation needs images (batch, channel, height, width), not inputs of shape "
            f"{tuple(inputs.shape)}"
        )
    wide = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
    unknown = mask.to(wide)
    imputed = _solve(wide, unknown, tolerance)
    nothing_known = unknown.amin((2, 3), keepdim=True) > 0
    imputed = torch.where(nothing_known, wide.mean((2, 3), keepdim=True), imputed)
    drawn = standard_normal(tuple(inputs.shape[1:]), inputs.device, wide.dtype)
    return torch.where(mask, imputed + noise * drawn, wide).to(inputs.dtype)


def _solve(inputs: Tensor, unknown: Tensor, tolerance: float) -> Tensor:
    """Solve the equations of all images and channels by preconditioned conjugate gradients."""
    grids = _grids(unknown)
    fine = grids[0]
    largest = tolerance * inputs.abs().amax((1, 2, 3), keepdim=True)
    residual = unknown * _neighbours((1 - unknown) * inputs)
    solution = torch.zeros_like(inputs)
    direction = preconditioned = _cycle(residual, grids)
    size = _inner(residual, preconditioned)
    for _ in range(MOST_ITERATIONS):
        if bool((residual.abs() <= largest).all()):
            break
        changed = fine.apply(direction)
        step = _ratio(size, _inner(direction, changed))
        solution = solution + step * direction
        residual = residual - step * changed
        preconditioned = _cycle(residual, grids)
        before, size = size, _inner(residual, preconditioned)
        direction = preconditioned + _ratio(size, before) * direction
    return solution


def _inner(first: Tensor, second: Tensor) -> Tensor:
    return (first * second).sum((2, 3), keepdim=True)


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Return part / whole, or 0 where an image is solved already and both are 0."""
    return torch.where(whole > 0, part / whole.clamp(min=torch.finfo(whole.dtype).tiny), 0.0)


def _neighbours(values: Tensor) -> Tensor:
    """Return the weighted sum of each pixel's eight neighbours; there are none outside the image.

    The weights are those of two 2 × 2 means, one after the other, without the centre's.
    """
    means = functional.avg_pool2d(values, 2, 1, padding=1)
    return (4 * functional.avg_pool2d(means, 2, 1) - values) / 3


@dataclass(frozen=True)
class _Grid:
    """The equations on a grid: 1 where a pixel is unknown, and the sum of its weights."""

    unknown: Tensor
    weight: Tensor

    def apply(self, values: Tensor) -> Tensor:
        """Return the left-hand sides; `values` are 0 where pixels are known."""
        return self.unknown * (self.weight * values - _neighbours(values))

    def jacobi(self, residual: Tensor) -> Tensor:
        """Return a damped Jacobi step."""
        return DAMPING * self.unknown * residual / self.weight


def _grids(unknown: Tensor) -> list[_Grid]:
    """Return the grid and coarser ones, whose pixels are unknown if all that they cover are."""
    grids: list[_Grid] = []
    while True:
        grids.append(_Grid(unknown, _neighbours(torch.ones_like(unknown[:1]))))
        if min(unknown.shape[-2:]) <= 2:
            return grids
        # Pixels beyond the edge of an odd grid do not exist, so they are not known either.
        unknown = 1 - functional.max_pool2d(1 - unknown, 2, ceil_mode=True)


def _cycle(residual: Tensor, grids: list[_Grid]) -> Tensor:
    """Return a multigrid cycle's solution of the equations: symmetric, for conjugate gradients."""
    fine, *coarser = grids
    solution = fine.jacobi(residual)
    if coarser:
        left = residual - fine.apply(solution)
        summed = functional.avg_pool2d(left, 2, ceil_mode=True, divisor_override=1)
        found = _cycle(coarser[0].unknown * summed, coarser)
        height, width = residual.shape[-2:]
        spread = found.repeat_interleave(2, 2).repeat_interleave(2, 3)[..., :height, :width]
        solution = solution + fine.unknown * spread
    return solution + fine.jacobi(residual - fine.apply(solution))
