"""Max-sensitivity: how much a map changes, at most, when the image changes by little.

    max over samples of ‖map(x + δ) − map(x)‖ / ‖map(x)‖,    each δ uniform in [−radius, radius]

Lower is better, but a map that ignores the image has 0: read it beside a metric of faithfulness.

    >>> explainer = dmbp.methods()["gradient"](model)
    >>> max_sensitivity(explainer.attribute, images, 3, samples=2).shape
    torch.Size([1])

The computation is Captum's `sensitivity_max`; the perturbations are drawn here, so that they are
the same for every image and every run.

Yeh, Hsieh, Suggala, Inouye and Ravikumar, NeurIPS 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from captum.metrics import sensitivity_max
from torch import Tensor

from dmbp.linear import Target
from dmbp.metrics.insertion import require_count
from dmbp.validation import check_range

RADIUS = 0.02
"""The largest change of a number of the input; Captum's default."""

SAMPLES = 10


def max_sensitivity(
    attribute: Callable[..., Any],
    inputs: Tensor,
    target: Target,
    *,
    radius: float = RADIUS,
    samples: int = SAMPLES,
    generator: torch.Generator | None = None,
    **arguments: Any,
) -> Tensor:
    """Return the largest relative change of each map under small changes of its image.

    Args:
        attribute: Returns maps from images and `target=`, such as `explainer.attribute`.
        inputs: Images (images, channels, height, width), or other inputs of the model.
        target: One target for each image, or one for all, as for `attribute`.
        radius: The largest change of a number of the input.
        samples: How many changed images are explained.
        generator: Draws the changes; without one, they are always the same.
        **arguments: Further arguments of `attribute`.

    Returns:
        The sensitivities (images,); 0 if the map never changes.

    Raises:
        InputError: If an option is out of range.
    """
    require_count("samples", samples)
    check_range("radius", radius, least=0.0, most=float("inf"))
    generator = generator or torch.Generator().manual_seed(0)

    def perturb(images: Tensor, radius: float) -> Tensor:
        drawn = torch.rand(images.shape[1:], generator=generator, device=generator.device)
        return images + radius * (2 * drawn - 1).to(images)

    return sensitivity_max(
        attribute,
        inputs,
        perturb_func=perturb,
        perturb_radius=radius,
        n_perturb_samples=samples,
        max_examples_per_batch=len(inputs),  # one change at a time, the same for all images
        target=target,
        **arguments,
    )
