"""An image classifier of Hugging Face's `transformers`, with its labels and its way to see photos.

    from transformers import AutoImageProcessor, AutoModelForImageClassification
    from dmbp.models import hugging_face_classifier

    def make():
        model = AutoModelForImageClassification.from_pretrained("a-folder")
        return hugging_face_classifier(model, AutoImageProcessor.from_pretrained("a-folder"))

Image processors have rules of their own for the same settings. What is read from one is held to
what it does to a photo, and refused where they differ.
"""

from collections.abc import Mapping
from typing import Any

import numpy
import torch
from PIL import Image
from torch import Tensor, nn

from dmbp.errors import ModelError
from dmbp.models.classifier import Classifier, Preprocessing

LEVELS = 0.1
"""Of 255, that two preparations of a photo may differ by on average: torchvision's rounding and
Pillow's differ by 0.005, the trial photo and itself one pixel aside by 13."""

SQUEEZED_FROM = 384
"""ConvNeXt's processor cuts smaller images and squeezes these (its `resize`)."""


def hugging_face_classifier(module: nn.Module, processor: Any, *, name: str = "") -> Classifier:
    """The classifier that a model and its image processor are together."""
    called = name or str(getattr(_config(module), "name_or_path", "")) or type(module).__name__
    several = getattr(_config(module), "problem_type", None) == "multi_label_classification"
    activation = "sigmoid" if several else "softmax"
    return Classifier(
        called, module.eval(), preprocessing_of(processor), labels_of(module), activation
    )


def labels_of(module: nn.Module) -> tuple[str, ...] | None:
    """The names of a model's classes, where its config has others than LABEL_0, LABEL_1, … ."""
    labels: Any = getattr(_config(module), "id2label", None)
    if not isinstance(labels, Mapping) or set(labels) != set(range(len(labels))):
        return None
    names = tuple(str(labels[k]) for k in range(len(labels)))
    return None if all(name == f"LABEL_{k}" for k, name in enumerate(names)) else names


def preprocessing_of(processor: Any) -> Preprocessing:
    """What an image processor does to a photo."""
    told: Mapping[str, Any] = processor.to_dict()
    sides = _sides(told)
    if not sides["crop"]:
        raise _unknown(processor)
    found = Preprocessing(
        **sides,
        **_normalisation(told),
        interpolation=Image.Resampling(int(told.get("resample", Image.Resampling.BILINEAR))),
    )
    photo = _trial_photo()
    theirs: Tensor = processor(photo, return_tensors="pt")["pixel_values"]
    ours = found.tensor(found.view(photo))
    deviation = torch.tensor(found.std).view(-1, 1, 1)
    if ours.shape != theirs.shape or 255 * ((ours - theirs) * deviation).abs().mean() > LEVELS:
        raise _unknown(processor)
    return found


def _sides(told: Mapping[str, Any]) -> dict[str, Any]:
    """How large a photo is made, and what of it is cut out."""
    size: Mapping[str, int] = told.get("size") or {}
    cut: Mapping[str, int] = told.get("crop_size") or {} if told.get("do_center_crop") else {}
    short, side = size.get("shortest_edge"), size.get("height")
    if short is not None and "crop_pct" in told and not cut:
        if short >= SQUEEZED_FROM:
            return {"crop": short, "fit": "squeeze"}
        return {"resize": int(short / told["crop_pct"]), "crop": short, "fit": "crop"}
    if cut and (short or side):
        fit = "squeeze-crop" if short is None else "crop"
        return {"resize": short or side, "crop": cut.get("height", 0), "fit": fit}
    return {"crop": short or side or 0, "fit": "squeeze" if short is None else "whole"}


def _normalisation(told: Mapping[str, Any]) -> dict[str, Any]:
    """Mean and deviation of RGB in [0, 1], whatever range the processor makes of it first."""
    whole = 255 * (told.get("rescale_factor", 1 / 255) if told.get("do_rescale") else 1.0)
    normalises = bool(told.get("do_normalize"))
    mean = told["image_mean"] if normalises else (0.0, 0.0, 0.0)
    std = told["image_std"] if normalises else (1.0, 1.0, 1.0)
    return {"mean": tuple(m / whole for m in mean), "std": tuple(s / whole for s in std)}


def _trial_photo() -> Image.Image:
    """Noise as rough as a photograph: one pixel aside is another picture."""
    noise = numpy.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=numpy.uint8)
    return Image.fromarray(noise).resize((400, 300), Image.Resampling.BICUBIC)


def _unknown(processor: Any) -> ModelError:
    return ModelError(
        f"{type(processor).__name__} prepares photos in a way that dmbp does not know; return a "
        "dmbp.models.Classifier with a Preprocessing of your own instead"
    )


def _config(module: nn.Module) -> Any:
    return getattr(module, "config", None)
