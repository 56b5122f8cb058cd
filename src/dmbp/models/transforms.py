"""Reads how photos are prepared for a network from the transform that it was trained with.

    >>> from dmbp.models.torchvision_models import import_torchvision
    >>> transforms = import_torchvision().transforms
    >>> val = transforms.Compose([
    ...     transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(),
    ...     transforms.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
    ... ])
    >>> read_transform(val).mean
    (0.5, 0.5, 0.5)

The same settings may be written, and interpreted, in many ways. What is read is therefore compared
with what the transform does to trial photos, and refused if the two differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import numpy
import torch
from PIL import Image
from torch import Tensor

from dmbp.errors import DMBPError, InputError
from dmbp.models.classifier import MAX_SIDE, Preprocessing

TOLERANCE = 0.5
"""The mean difference allowed between trial photos prepared by others and ours, in levels of 255:
torchvision's and Pillow's rounding differ by 0.1 at most, a shift by one pixel makes a difference
of 13."""


AT_RANDOM = ("Random", "Color", "Auto", "Trivial", "Aug", "Gaussian", "Elastic")
"""How the names of steps begin that change photos at random, in training."""


def prepares_alike(preprocessing: Preprocessing, prepare: Callable[[Image.Image], Tensor]) -> bool:
    """Return whether trial photos become what `prepare` makes of them, a batch or one image."""
    std = torch.tensor(preprocessing.std).view(-1, 1, 1)
    for photo in _trial_photos(preprocessing):
        ours = preprocessing.tensor(preprocessing.view(photo))
        theirs = prepare(photo)
        theirs = theirs[None] if theirs.dim() == 3 else theirs
        if ours.shape != theirs.shape or 255 * ((ours - theirs) * std).abs().mean() > TOLERANCE:
            return False
    return True


def _trial_photos(preprocessing: Preprocessing) -> Iterator[Image.Image]:
    """Yield noise as rough as a photograph, so that a shift by one pixel shows.

    Where the long side is limited, there is also a photo that is long enough for that.
    """
    noise = numpy.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=numpy.uint8)
    for size in ((400, 300), (200, 700))[: 1 if preprocessing.longest is None else 2]:
        yield Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


def read_transform(transform: Any) -> Preprocessing:
    """Return the preprocessing that a transform of torchvision or timm describes.

    Args:
        transform: Such as `weights.transforms()`, or a `Compose` that resizes, crops, makes a
            tensor and normalises.

    Raises:
        InputError: If what is read from it prepares a trial photo differently.
    """
    steps = [type(step).__name__ for step in _steps(transform)]
    chance = [step for step in steps if step.startswith(AT_RANDOM)]
    if chance:
        raise InputError(
            f"the transform changes photos at random ({', '.join(chance)}): give the one of your "
            "validation photos"
        )
    try:
        if hasattr(transform, "resize_size"):
            return read_preset(transform)
        preprocessing = Preprocessing(**_settings(list(_steps(transform))))
        if prepares_alike(preprocessing, transform):
            return preprocessing
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        pass  # a transform of another kind, or one that takes something else than a photo
    except DMBPError:
        pass
    raise InputError(
        f"the transform ({', '.join(steps)}) prepares photos in a way that dmbp cannot read, which "
        "is by Resize, CenterCrop, Grayscale, ToTensor and Normalize: give "
        "preprocessing=dmbp.models.Preprocessing(…), or the tensor that the transform makes of the "
        "photo in place of the photo"
    )


def read_preset(preset: Any) -> Preprocessing:
    """Return the preprocessing of `weights.transforms()` of torchvision's weights."""
    size = _side(preset.resize_size)
    is_cropped = hasattr(preset, "crop_size")
    sizes: dict[str, Any] = _whole(size)
    if is_cropped:
        sizes = {"resize": size, "crop": _side(preset.crop_size)}
    return Preprocessing(
        **sizes,
        mean=tuple(preset.mean),
        std=tuple(preset.std),
        interpolation=_resampling(preset.interpolation),
    )


def _side(size: Any) -> int:
    return size if isinstance(size, int) else size[0]


def _resampling(mode: Any) -> Image.Resampling:
    """Return Pillow's name of an interpolation of torchvision."""
    return Image.Resampling[str(getattr(mode, "value", mode)).upper()]


def _steps(transform: Any) -> Iterator[Any]:
    """Yield the steps of a transform, and of those inside it."""
    parts: Iterable[Any] | None = getattr(transform, "transforms", None)
    if parts is None:
        yield transform
        return
    for part in parts:
        yield from _steps(part)


def _settings(steps: list[Any]) -> dict[str, Any]:
    """Return the arguments of `Preprocessing` for the steps whose kind is known."""
    by_kind: Mapping[str, Any] = {type(step).__name__: step for step in steps}
    resize, crop = by_kind.get("Resize"), by_kind.get("CenterCrop")
    normalise = by_kind.get("Normalize")
    found: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    if "Grayscale" in by_kind:
        found = {"mean": (0.0,), "std": (1.0,)}
    if normalise is not None:
        mean, std = (torch.as_tensor(k).flatten().tolist() for k in (normalise.mean, normalise.std))
        found = {"mean": tuple(mean), "std": tuple(std)}
    if resize is None:
        raise ValueError("photos of any size are taken as they are")
    found["interpolation"] = _resampling(resize.interpolation)
    size = _size(resize.size)
    if crop is None:
        return found | (_whole(size) if isinstance(size, int) else {"crop": size, "fit": "squeeze"})
    fit = "crop" if isinstance(size, int) else "squeeze-crop"
    return found | {"resize": size, "crop": _size(crop.size), "fit": fit}


def _whole(side: int) -> dict[str, Any]:
    """Return the settings of a whole photo with this short side.

    With a limit for the long side, sizes are rounded down as torchvision rounds them.
    """
    return {"crop": side, "fit": "whole", "longest": MAX_SIDE}


def _size(size: Any) -> Any:
    """Return a size as a number, if it is the short side alone, or as a pair."""
    if isinstance(size, int):
        return size
    sides = tuple(cast("Iterable[int]", size))
    return sides[0] if len(sides) == 1 else sides
