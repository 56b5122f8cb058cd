"""Reads the preprocessing of an image processor of `transformers`.

Image processors interpret the same settings differently. The preprocessing that is read from a
processor's settings is therefore compared with what the processor does to a trial photo, and the
processor is refused if the two differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy
import torch
from PIL import Image
from torch import Tensor

from dmbp.errors import DMBPError, ModelError
from dmbp.models.classifier import Preprocessing

TOLERANCE = 0.5
"""The mean difference allowed between the processor's trial photos and ours, in levels of 255:
torchvision's and Pillow's rounding differ by 0.1 at most, a shift by one pixel makes a difference
of 13."""

SQUEEZED_FROM = 384
"""Size from which ConvNeXt's processor squeezes photos; for smaller sizes it crops them."""


MULTIPLES = (1, 16)
"""What the sides of photos that keep their shape may be multiples of, in the order of trying: a
processor does not say it."""


def read_preprocessing(processor: Any) -> Preprocessing:
    """Return the preprocessing of an image processor.

    Raises:
        ModelError: If its settings, read as `Preprocessing`, prepare a trial photo differently.
    """
    settings: Mapping[str, Any] = processor.to_dict()
    try:
        preprocessing = Preprocessing(
            **_read_sizes(settings),
            **_read_normalisation(settings),
            channels="bgr" if settings.get("do_flip_channel_order") else "rgb",
            interpolation=Image.Resampling(
                int(settings.get("resample") or Image.Resampling.BILINEAR)
            ),
        )
        candidates = [preprocessing]
        if preprocessing.fit == "whole":
            candidates = [replace(preprocessing, multiple=k) for k in MULTIPLES]
        found = next((k for k in candidates if _is_prepared_alike(k, processor)), None)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, DMBPError) as error:
        raise _unsupported(processor) from error  # settings of another kind
    if found is None:
        raise _unsupported(processor)
    return found


def _is_prepared_alike(preprocessing: Preprocessing, processor: Any) -> bool:
    """Return whether trial photos become what the processor makes of them."""
    std = torch.tensor(preprocessing.std).view(-1, 1, 1)
    for photo in _trial_photos(preprocessing):
        ours = preprocessing.tensor(preprocessing.view(photo))
        theirs: Tensor = processor(photo, return_tensors="pt")["pixel_values"]
        if ours.shape != theirs.shape or 255 * ((ours - theirs) * std).abs().mean() > TOLERANCE:
            return False
    return True


def _read_sizes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Preprocessing` for resizing and cropping."""
    size: Mapping[str, int] = settings.get("size") or {}
    is_cropped = settings.get("do_center_crop")
    crop: Mapping[str, int] = settings.get("crop_size") or {} if is_cropped else {}
    short, whole = size.get("shortest_edge"), (size.get("height", 0), size.get("width", 0))
    if short is not None and "crop_pct" in settings and not crop:
        if short >= SQUEEZED_FROM:
            return {"crop": short, "fit": "squeeze"}
        return {"resize": int(short / settings["crop_pct"]), "crop": short, "fit": "crop"}
    if crop:
        fit = "squeeze-crop" if short is None else "crop"
        return {"resize": short or whole, "crop": (crop["height"], crop["width"]), "fit": fit}
    longest = size.get("longest_edge")
    if longest is not None:
        return {"crop": short or longest, "longest": longest, "fit": "whole"}
    return {"crop": short or whole, "fit": "squeeze" if short is None else "whole"}


def _read_normalisation(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return mean and std for RGB in [0, 1], whichever range the processor rescales it to."""
    white = 255 * (settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale") else 1.0)
    is_normalised = bool(settings.get("do_normalize"))
    mean = settings["image_mean"] if is_normalised else (0.0, 0.0, 0.0)
    std = settings["image_std"] if is_normalised else (1.0, 1.0, 1.0)
    return {"mean": tuple(m / white for m in mean), "std": tuple(s / white for s in std)}


def _trial_photos(preprocessing: Preprocessing) -> Iterator[Image.Image]:
    """Yield noise as rough as a photograph, so that a shift by one pixel shows.

    Where the long side is limited, there is also a photo that is long enough for that.
    """
    noise = numpy.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=numpy.uint8)
    for size in ((400, 300), (200, 700))[: 1 if preprocessing.longest is None else 2]:
        yield Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


def _unsupported(processor: Any) -> ModelError:
    return ModelError(
        f"{type(processor).__name__} prepares photos in a way that dmbp does not support; give "
        "--size, --mean and --std, or return a dmbp.models.Classifier with your own Preprocessing"
    )
