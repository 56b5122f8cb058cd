"""Baseline images, which pixels are compared with: an attribution is a linear map ⊙ (x − baseline).

The paper's baseline is zero. With a blurred copy of x, where the insertion metric starts, only what
a pixel adds to its surroundings counts. The public name of the setting is `reference`.
"""

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from dmbp.devices import in_float64
from dmbp.errors import InputError

Baseline = Tensor | Literal["blur", "mean", "zero"] | None
"""Zero (or None), a blurred copy of the input, each channel's mean, or a tensor."""

ReplaceFunction = Callable[[Tensor, Tensor], Tensor]
"""Returns images from images and a mask, (images, 1, *size), that is true where pixels are removed:
inpainting, for example. The mask of vectors is (vectors, entries)."""

BLUR_SIZE, BLUR_SIGMA = 11, 5.0

WIDE_BLUR = 1 / 5
"""The least width of the blur of signals and volumes, as a share of their side: four of the windows
that signals are tested with. Eleven moments of thousands would hardly be blurred."""


def blur_weights(size: int = BLUR_SIZE, sigma: float = BLUR_SIGMA) -> Tensor:
    """Return the insertion metric's 1-D blur kernel; the 2-D one is its outer product with itself.

    RISE filters a centred delta of `size` pixels with a Gaussian that is cut off at 4 sigma and
    reflected at the borders. The result is nearly a box: in 2-D the largest weight is 1.14 times
    the smallest.
    """
    radius = int(4 * sigma + 0.5)
    gaussian = [math.exp(-0.5 * (k / sigma) ** 2) for k in range(-radius, radius + 1)]
    weights = torch.zeros(size, dtype=torch.float64)
    for position in range(size):
        for offset, weight in zip(range(-radius, radius + 1), gaussian, strict=True):
            folded = (position + offset) % (2 * size)
            if min(folded, 2 * size - 1 - folded) == size // 2:
                weights[position] += weight / sum(gaussian)
    return weights


@cache
@torch.inference_mode(False)
def _blur_weights_on(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the kernel on a device; it is cached because each copy would wait for the GPU."""
    return blur_weights().to(device, dtype)


def blur(images: Tensor) -> Tensor:
    """Blur images (batch, channel, height, width) channel by channel, padded with zeros.

    Signals and volumes are blurred along each of their dimensions, without the padding's dark
    edges: the blurred ones are divided by the kernel's weight inside. Along dimensions longer than
    `BLUR_SIZE / WIDE_BLUR`, the mean of `WIDE_BLUR` of the side is taken.
    """
    weights = _blur_weights_on(images.device, images.dtype)
    if images.dim() != 4:
        return _blur_along_all(images, weights)
    channels = images.shape[1]
    down = weights.view(1, 1, -1, 1).expand(channels, 1, -1, 1)
    across = weights.view(1, 1, 1, -1).expand(channels, 1, 1, -1)
    padding = BLUR_SIZE // 2
    blurred = functional.conv2d(images, down, padding=(padding, 0), groups=channels)
    return functional.conv2d(blurred, across, padding=(0, padding), groups=channels)


def _blur_along_all(inputs: Tensor, weights: Tensor) -> Tensor:
    """Blur inputs (batch, channel, …) along every dimension after the second."""
    for dim in range(2, inputs.dim()):
        lines = inputs.movedim(dim, -1)
        flat = lines.reshape(-1, 1, lines.shape[-1])
        half = round(WIDE_BLUR * lines.shape[-1]) // 2
        if 2 * half + 1 > BLUR_SIZE:
            inputs = _box_mean(flat, half).view_as(lines).movedim(-1, dim)
            continue
        kernel, padding = weights.view(1, 1, -1), len(weights) // 2
        inside = functional.conv1d(torch.ones_like(flat[:1]), kernel, padding=padding)
        blurred = functional.conv1d(flat, kernel, padding=padding) / inside
        inputs = blurred.view_as(lines).movedim(-1, dim)
    return inputs


MOST_SUMMED = 2**22
"""The most numbers that are summed at once; the sums take ten times their memory."""


def _box_mean(lines: Tensor, half: int) -> Tensor:
    """Return the mean of up to `half` neighbours on each side, of lines (lines, 1, length)."""
    length = lines.shape[-1]
    place = torch.arange(length, device=in_float64(lines[:1]).device)
    first, last = (place - half).clamp(min=0), (place + half + 1).clamp(max=length)
    means: list[Tensor] = []
    for some in lines.split(max(1, MOST_SUMMED // length)):
        total = functional.pad(in_float64(some).cumsum(-1), (1, 0))
        means.append(((total[..., last] - total[..., first]) / (last - first)).to(lines))
    return means[0] if len(means) == 1 else torch.cat(means)


def noise(inputs: Tensor) -> Tensor:
    """Return noise around each channel's mean, with its standard deviation.

    The numbers drawn are the same for every input, so that a result does not depend on its batch.
    """
    if inputs.dim() == 2:
        mean, deviation = inputs.mean(1, keepdim=True), inputs.std(1, keepdim=True, correction=0)
    else:
        dims = tuple(range(2, inputs.dim()))
        mean = inputs.mean(dims, keepdim=True)
        deviation = inputs.std(dims, keepdim=True, correction=0)
    drawn = standard_normal(tuple(inputs.shape[1:]), inputs.device, inputs.dtype)
    return mean + deviation * drawn


@lru_cache(maxsize=4)
@torch.inference_mode(False)
def standard_normal(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return normal numbers that are the same every time."""
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return drawn.to(device, dtype)


def baseline_for(inputs: Tensor, reference: Baseline) -> Tensor:
    """Return a reference as a tensor shaped like the inputs.

    Raises:
        InputError: If the reference is unknown, not finite, or does not fit the inputs' shape.
    """
    if reference is None or (isinstance(reference, str) and reference == "zero"):
        return torch.zeros_like(inputs)
    if isinstance(reference, Tensor):
        if not torch.isfinite(reference).all():
            raise InputError("the reference contains NaN or infinity")
        try:
            return reference.to(inputs).expand_as(inputs)
        except RuntimeError as error:
            raise InputError(
                f"a reference of shape {tuple(reference.shape)} does not fit inputs of shape "
                f"{tuple(inputs.shape)}"
            ) from error
    if reference not in ("blur", "mean"):
        raise InputError(
            f"reference must be 'zero', 'blur', 'mean', a tensor or None, not {reference!r}"
        )
    if reference == "mean":
        average = inputs.flatten(2).mean(2) if inputs.dim() > 2 else inputs.mean(1, keepdim=True)
        return average.view(*average.shape, *(1,) * (inputs.dim() - 2)).expand_as(inputs)
    if inputs.dim() < 3:
        raise InputError(
            "reference='blur' needs images (batch, channel, height, width), signals (batch, "
            f"channel, length) or volumes, not inputs of shape {tuple(inputs.shape)}; use "
            "reference=None"
        )
    return blur(inputs)


def default_substrate(inputs: Tensor) -> Baseline:
    """Return what metrics replace pixels by, unless told: a vector's entries cannot be blurred."""
    return "zero" if inputs.dim() == 2 else "blur"


def replaced_by(function: ReplaceFunction, inputs: Tensor, mask: Tensor) -> Tensor:
    """Return what a function makes of images whose pixels in `mask` are removed.

    Raises:
        InputError: If it fails, or returns something else than images of the same shape.
    """
    try:
        images: Any = function(inputs.clone(), mask)
    except Exception as error:
        raise InputError(f"the removal function fails: {error}") from error
    if not isinstance(images, Tensor) or images.shape != inputs.shape:
        is_tensor = isinstance(images, Tensor)
        what = f"shape {tuple(images.shape)}" if is_tensor else type(images).__name__
        raise InputError(
            "a removal function takes images and a mask, and returns images of the same shape, "
            f"{tuple(inputs.shape)}, not {what}"
        )
    if not torch.isfinite(images).all():
        raise InputError("the removal function returned NaN or infinity")
    return images.to(inputs)
