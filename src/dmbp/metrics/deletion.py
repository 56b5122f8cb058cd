"""The deletion metric: how soon an image is no longer recognised as its strongest pixels go.

    >>> deletion(model, images, 3, torch.randn(images.shape)).shape
    torch.Size([1])

Petsiuk, Das and Saenko, "RISE", BMVC 2018. RISE itself deletes to grey: `substrate="zero"`.
"""

from typing import Unpack

from torch import Tensor

from dmbp.linear import Target
from dmbp.linear.model import Model
from dmbp.metrics.curve import CurveOptions, area, probability_curve


def deletion(
    model: Model,
    inputs: Tensor,
    target: Target,
    attribution: Tensor,
    **options: Unpack[CurveOptions],
) -> Tensor:
    """The deletion score of every image, (images,); lower is better."""
    return area(deletion_curve(model, inputs, target, attribution, **options))


def deletion_curve(
    model: Model,
    inputs: Tensor,
    target: Target,
    attribution: Tensor,
    **options: Unpack[CurveOptions],
) -> Tensor:
    """The target's probability after each step, (images, steps + 1)."""
    return probability_curve(model, inputs, target, attribution, removing=True, options=options)
