"""Blur integrated gradients: gradients on the path from a blurred image to the sharp one.

    a = −Σ_k ∇y(x_σₖ) ⊙ ∂x_σ/∂σ (σₖ) · Δσ           Σ a ≈ y(x) − y(x_σmax)

x_σ is the image, padded with zeros and blurred by a Gaussian of σ pixels. Unlike the other gradient
methods, this one does not multiply by x.

    >>> BlurIG(model, steps=20).attribute(images, target=3).shape
    torch.Size([1, 3, 8, 8])

Xu, Venugopalan and Sundararajan, "Attribution in Scale and Space", CVPR 2020; the defaults are
those of the authors' `saliency` package.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dmbp.attribution.base import Method
from dmbp.attribution.gradient import gradients_at_points
from dmbp.attribution.stage import require_places
from dmbp.linear import Question
from dmbp.linear.model.signature import Output
from dmbp.linear.model.wrappers import Model
from dmbp.validation import check_range

DERIVATIVE_STEP = 0.01
MAX_STEPS = 1000
MIN_SIGMA, MAX_SIGMA = 0.01, 1000
"""The step in σ of the finite difference ∂x_σ/∂σ."""


class BlurIG(Method):
    """Gradients integrated from σ = 0 to `max_sigma`.

    Args:
        model: The model to explain.
        max_sigma: The largest blur, in pixels.
        steps: How many points the integral is a sum over.
        square_root: Whether to take the square root of every σ, an option of the authors' package;
            the largest blur is then √max_sigma.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.

    Raises:
        InputError: If `steps` is not from 1 to 1000, or `max_sigma` not from 0.01 to 1000.
    """

    runs_many_points = True

    def __init__(
        self,
        model: Model,
        *,
        max_sigma: float = 50.0,
        steps: int = 100,
        square_root: bool = False,
        output: Output = None,
    ) -> None:
        super().__init__(model, output=output)
        self.check_settings(steps=steps, max_sigma=max_sigma)
        self.max_sigma, self.steps, self.square_root = max_sigma, steps, square_root

    @staticmethod
    def check_settings(*, steps: int, max_sigma: float, **_: Any) -> None:
        """Raise an `InputError` if a setting is out of range."""
        check_range("steps", steps, least=1, most=MAX_STEPS)
        check_range("max_sigma", max_sigma, least=MIN_SIGMA, most=MAX_SIGMA)

    def answer(self, question: Question) -> Tensor:
        """Return the integral for each row."""
        require_places("blur_ig", question.inputs)
        sigmas = self.sigmas()
        gradients = gradients_at_points(question, self._path(question.inputs))
        total = torch.zeros_like(question.inputs)
        for sigma, following, gradient in zip(sigmas[:-1], sigmas[1:], gradients, strict=True):
            blurred = gaussian_blur(question.inputs, sigma)
            further = gaussian_blur(question.inputs, sigma + DERIVATIVE_STEP)
            total -= gradient * (further - blurred) * ((following - sigma) / DERIVATIVE_STEP)
        return total

    def sigmas(self) -> list[float]:
        """Return the σ at the ends of all steps, beginning with 0."""
        even = [self.max_sigma * k / self.steps for k in range(self.steps + 1)]
        return [math.sqrt(sigma) for sigma in even] if self.square_root else even

    def _path(self, inputs: Tensor) -> Iterator[Tensor]:
        for sigma in self.sigmas()[:-1]:
            yield gaussian_blur(inputs, sigma)


def gaussian_blur(images: Tensor, sigma: float) -> Tensor:
    """Blur images by a Gaussian of `sigma` pixels, cut off at 4 sigma and padded with zeros."""
    if sigma == 0:
        return images
    for dim in range(2, images.dim()):
        matrix = _blur_matrix(images.shape[dim], sigma).to(images)
        images = (images.movedim(dim, -1) @ matrix.T).movedim(-1, dim)
    return images


def _blur_matrix(size: int, sigma: float) -> Tensor:
    """Return the blur of a line of `size` pixels as a (size, size) matrix."""
    radius = int(4 * sigma + 0.5)
    weights = [math.exp(-0.5 * (k / sigma) ** 2) for k in range(-radius, radius + 1)]
    kernel = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    position = torch.arange(size)
    offset = position[:, None] - position[None, :]
    inside = offset.abs() <= radius
    return torch.where(inside, kernel[(offset + radius).clamp(0, 2 * radius)], 0.0)
