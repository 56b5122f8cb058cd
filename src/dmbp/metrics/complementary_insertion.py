"""Complementary insertion (cIM): whether what speaks against a class shows the other ones.

The pixels least in favour of the target go in first; the score is the mean over the image's *other*
classes of the area under their curves.

    >>> complementary_insertion(model, images, [[1, 4]], torch.randn(images.shape)).shape
    torch.Size([1])

Ruiz, Agudo and Moreno-Noguer, ICCV 2021, Section 4.
"""

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor

from dmbp.errors import TargetError
from dmbp.linear.model import Model
from dmbp.metrics.curve import CurveOptions, area, probability_curve


def complementary_insertion(
    model: Model,
    inputs: Tensor,
    others: Sequence[Sequence[int]],
    attribution: Tensor,
    **options: Unpack[CurveOptions],
) -> Tensor:
    """The complementary score of every image, (images,); higher is better.

    `others` lists for every image the classes it shows beside the one that `attribution` is about.
    """
    try:
        distinct = [sorted({int(index) for index in classes}) for classes in others]
    except (TypeError, ValueError) as error:
        raise TargetError(
            "the other classes are a list of class indices for every image, such as [[3], [1, 4]]"
        ) from error
    if not all(distinct):
        raise TargetError(
            "complementary insertion needs at least one other class for every image; leave out "
            "images that show one class only"
        )
    signed = attribution if attribution.is_floating_point() else attribution.double()
    # The mean of areas is the area of the mean.
    mean = [{index: 1 / len(classes) for index in classes} for classes in distinct]
    return area(probability_curve(model, inputs, mean, -signed, removing=False, options=options))
