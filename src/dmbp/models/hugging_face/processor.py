"""Reads the preprocessing of an image processor of `transformers`.

Image processors interpret the same settings differently. The preprocessing that is read from a
processor's settings is therefore compared with what the processor does to a trial photo, and the
processor is refused if the two differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from PIL import Image
from torch import Tensor

from dmbp.errors import DMBPError, ModelError
from dmbp.models.classifier import Preprocessing
from dmbp.models.transforms import prepares_alike

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

        def prepare(photo: Image.Image) -> Tensor:
            return processor(photo, return_tensors="pt")["pixel_values"]

        found = next((k for k in candidates if prepares_alike(k, prepare)), None)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, DMBPError) as error:
        raise _unsupported(processor) from error  # settings of another kind
    if found is None:
        raise _unsupported(processor)
    return found


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


def _unsupported(processor: Any) -> ModelError:
    return ModelError(
        f"{type(processor).__name__} prepares photos in a way that dmbp does not support; give "
        "--size, --mean and --std, or return a dmbp.models.Classifier with your own Preprocessing"
    )
