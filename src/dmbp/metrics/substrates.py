"""Substrates: what an image shows where a metric removes pixels.

"blur", "zero", "mean"      a blurred copy, zeros, each channel's mean
"noise"                     noise with each channel's mean and standard deviation
"linear"                    noisy linear imputation from the surroundings (`imputation.py`)
a tensor                    shaped like the inputs
a function                  of the inputs and a mask that is true where pixels are removed

>>> mask = torch.zeros(1, 1, 8, 8, dtype=torch.bool)
>>> torch.equal(remove_pixels(images, mask, "zero"), images)
True
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from dmbp.baseline import (
    Baseline,
    ReplaceFunction,
    baseline_for,
    default_substrate,
    noise,
    replaced_by,
)
from dmbp.errors import InputError
from dmbp.metrics.imputation import linear_imputation

Substrate = Baseline | Literal["noise", "linear"] | ReplaceFunction
"""What replaces removed pixels: a name, a tensor, or a function of the inputs and a mask."""

AutoSubstrate = Substrate | Literal["auto"]
"""A substrate, or "auto": "blur", but "zero" for vectors, which have no surroundings."""

NAMES = ("zero", "blur", "mean", "noise", "linear")


def resolve_substrate(substrate: AutoSubstrate, inputs: Tensor) -> Tensor | ReplaceFunction:
    """Return a substrate as a tensor shaped like the inputs, or as a function of a mask.

    Raises:
        InputError: If the substrate is unknown, or does not fit the inputs.
    """
    if isinstance(substrate, Tensor) or substrate is None:
        return baseline_for(inputs, substrate)
    if callable(substrate):
        return substrate
    if substrate == "auto":
        return baseline_for(inputs, default_substrate(inputs))
    if substrate == "noise":
        return noise(inputs)
    if substrate == "linear":
        return linear_imputation
    if substrate not in NAMES:
        raise InputError(
            f"substrate must be {', '.join(map(repr, NAMES))}, a tensor or a function, not "
            f"{substrate!r}"
        )
    return baseline_for(inputs, substrate)


def pick_images(substrate: Tensor | ReplaceFunction, images: list[int]) -> Any:
    """Return the part of a resolved substrate that belongs to images."""
    return substrate[images] if isinstance(substrate, Tensor) else substrate


def fill(inputs: Tensor, mask: Tensor, substrate: Tensor | ReplaceFunction) -> Tensor:
    """Return the inputs with a resolved substrate in place of the pixels in the mask."""
    if not isinstance(substrate, Tensor):
        substrate = replaced_by(substrate, inputs, mask)
    return torch.where(mask, substrate, inputs)


def remove_pixels(inputs: Tensor, mask: Tensor, substrate: AutoSubstrate = "auto") -> Tensor:
    """Return inputs whose pixels in a mask are replaced.

    Args:
        inputs: Images (images, channels, height, width), signals, volumes or vectors.
        mask: True where pixels are removed, (images, 1, *size), or shaped like vectors.
        substrate: What the images show there: "blur", "zero", "mean", "noise", "linear", a tensor,
            or a function of the inputs and the mask.

    Returns:
        The inputs without these pixels.

    Raises:
        InputError: If the substrate is unknown or does not fit the inputs.
    """
    return fill(inputs, mask, resolve_substrate(substrate, inputs))
