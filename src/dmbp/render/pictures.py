"""Tensors as pictures: arrays (height, width, 3)."""

import numpy
from torch import Tensor

from dmbp.errors import InputError
from dmbp.render.colour import Array


def check_drawable(inputs: Tensor) -> None:
    """Refuse what is no batch of images."""
    if inputs.dim() != 4 or inputs.shape[1] not in (1, 3):
        raise InputError(
            "only images of one or three channels can be drawn, not inputs of shape "
            f"{tuple(inputs.shape)}"
        )


def picture(image: Tensor) -> Array:
    """An image (channel, height, width) with its values as they are; grey in all three channels."""
    array = image.detach().cpu().double().permute(1, 2, 0).numpy()
    return numpy.repeat(array, 3, axis=2) if array.shape[2] == 1 else array


def stretched(image: Tensor) -> Array:
    """An image with its darkest value black and its brightest white."""
    array = picture(image)
    low, high = array.min(), array.max()
    return (array - low) / max(high - low, 1e-12)
