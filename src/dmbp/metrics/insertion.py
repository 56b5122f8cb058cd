"""The insertion metric (IM): how soon a blurred image is recognised as its strongest pixels go in.

    >>> insertion(model, images, 3, torch.randn(images.shape)).shape
    torch.Size([1])

Petsiuk, Das and Saenko, "RISE", BMVC 2018; `curve.py` says how the curve is made.
"""

from typing import Unpack

from torch import Tensor

from dmbp.linear import Target
from dmbp.linear.model import Model
from dmbp.metrics.curve import CurveOptions, area, probability_curve


def insertion(
    model: Model,
    inputs: Tensor,
    target: Target,
    attribution: Tensor,
    **options: Unpack[CurveOptions],
) -> Tensor:
    """The insertion score of every image, (images,); higher is better."""
    return area(insertion_curve(model, inputs, target, attribution, **options))


def insertion_curve(
    model: Model,
    inputs: Tensor,
    target: Target,
    attribution: Tensor,
    **options: Unpack[CurveOptions],
) -> Tensor:
    """The target's probability after each step, (images, steps + 1).

    `attribution` is shaped like the inputs, or has one channel.
    """
    return probability_curve(model, inputs, target, attribution, removing=False, options=options)
