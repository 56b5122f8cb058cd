"""SmoothGrad: the gradient averaged over noisy copies of the image.

    a = (x − reference) ⊙ mean_k ∇y(x + ε_k)        ε_k normal, 15 % of the image's range

    >>> SmoothGrad(model, samples=5).attribute(images, target=3).shape
    torch.Size([1, 3, 8, 8])

Smilkov et al., "SmoothGrad: removing noise by adding noise", 2017; 25 samples and 15 % are the
defaults of the authors' `saliency` package.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dmbp.attribution.base import LinearMapMethod
from dmbp.attribution.gradient import gradients_at_points
from dmbp.baseline import Baseline
from dmbp.linear import Question
from dmbp.linear.model.signature import Output
from dmbp.linear.model.wrappers import Model
from dmbp.validation import check_range

MAX_SAMPLES = 1000
"""All samples' gradients are in memory at once."""

MAX_NOISE = 1000


class SmoothGrad(LinearMapMethod):
    """Gradients averaged over noisy copies of the image.

    Every image gets the same noise, scaled to its range, so that its map does not depend on its
    batch.

    Args:
        model: The model to explain.
        samples: How many noisy copies are averaged.
        noise: The noise's standard deviation, as a share of the image's range.
        generator: Draws a new seed at every call; without one, all calls use the same numbers.
        reference: What pixels are compared with: None or "zero", "blur", "mean" or a tensor.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.

    Raises:
        InputError: If `samples` is not from 1 to 1000, or `noise` not from 0 to 1000.
    """

    runs_many_points = True

    def __init__(
        self,
        model: Model,
        *,
        samples: int = 25,
        noise: float = 0.15,
        generator: torch.Generator | None = None,
        reference: Baseline = None,
        output: Output = None,
    ) -> None:
        super().__init__(model, reference=reference, generator=generator, output=output)
        self.check_settings(samples=samples, noise=noise)
        self.samples = samples
        self.noise = noise

    @staticmethod
    def check_settings(*, samples: int, noise: float, **_: Any) -> None:
        """Raise an `InputError` if a setting is out of range."""
        check_range("samples", samples, least=1, most=MAX_SAMPLES)
        check_range("noise", noise, least=0, most=MAX_NOISE)

    def linear_map(self, question: Question) -> Tensor:
        """Return the average gradient for each row."""
        gradients = gradients_at_points(question, self._noisy(question))
        return torch.stack(list(gradients)).mean(0)

    def _noisy(self, question: Question) -> Iterator[Tensor]:
        inputs, generator = question.inputs, question.generator()
        flat = inputs.flatten(1)
        spread = self.noise * (flat.amax(1) - flat.amin(1))
        spread = spread.view(-1, *(1,) * (inputs.dim() - 1))
        for _ in range(self.samples):
            noise = torch.randn(inputs.shape[1:], generator=generator)
            yield inputs + spread * noise.to(inputs)
