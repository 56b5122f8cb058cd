"""What a model must do alike for an image alone and among others, asked of the model itself.

Whether images see each other, and whether other inputs belong to images one by one, shows in its
outputs alone.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from dmbp.errors import CaptureError, ModelError
from dmbp.linear.exactness import TOLERANCE, relative_error
from dmbp.linear.held import Held

OutputsOf = Callable[[Tensor, Held], Tensor]
"""A model's outputs for some images beside its other inputs."""


def check_independence(model: OutputsOf, inputs: Tensor, held: Held, outputs: Tensor) -> None:
    """Refuse a model that lets the images of a batch see each other; `outputs` are all images'."""
    first = held.pick([0])
    try:
        beside_another = model(torch.cat([inputs[:1], -inputs[:1].flip(-1)]), first)[:1]
        alone = model(inputs[:1], first)
    except ModelError:
        return  # it takes batches of one size only, and was run on that
    tolerance = TOLERANCE[inputs.dtype]
    if max(relative_error(other, alone) for other in (beside_another, outputs[:1])) > tolerance:
        raise CaptureError(
            "an image's output changes with the other images of its batch, so no explanation "
            "of one image exists; does forward() average or mix over the batch?"
        )


def as_taken(model: OutputsOf, inputs: Tensor, held: Held) -> Held:
    """The other inputs: of those that count the images, what the model takes them for.

    A weight for each of five classes beside five images must not be cut into images: a few copies
    of the first image, with its share of what is given, have to give its output again, and so have
    all images in another order.
    """
    if not held.by_image:
        return held
    copies = inputs[:1].expand(3 if len(inputs) == 2 else 2, *inputs.shape[1:])
    outputs = model(inputs, held)
    first, turned = outputs[:1].expand(len(copies), -1), outputs.flip(0)
    order = range(len(inputs) - 1, -1, -1)
    agree = (
        reading
        for reading in held.readings()
        if _gives(model, copies, reading.pick([0]), first)
        and _gives(model, inputs.flip(0), reading.pick(order), turned)
    )
    return next(agree, held)


def _gives(model: OutputsOf, inputs: Tensor, held: Held, expected: Tensor) -> bool:
    try:
        found = model(inputs, held)
    except ModelError:
        return False
    return relative_error(found, expected) <= TOLERANCE[inputs.dtype]
