"""Loads a user's model, named `package.module:factory` on the command line.

The name refers to a function without arguments, or directly to what such a function returns: an
`nn.Module`, a program of `torch.export`, or a `dmbp.models.Classifier` with one of these, which
also defines the preprocessing and the class names.

`hugging_face_classifier` returns such a classifier for a model of Hugging Face's `transformers`,
with its labels and preprocessing:

    from transformers import AutoImageProcessor, AutoModelForImageClassification
    from dmbp.models import hugging_face_classifier

    def make():
        model = AutoModelForImageClassification.from_pretrained("a-folder")
        return hugging_face_classifier(model, AutoImageProcessor.from_pretrained("a-folder"))

Image processors interpret the same settings differently. The preprocessing that is read from a
processor's settings is therefore compared with what the processor does to a trial photo, and the
processor is refused if the two differ.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image
from torch import Tensor, nn
from torch.export import ExportedProgram

from dmbp.errors import ModelError
from dmbp.linear.model.wrappers import force_eval
from dmbp.models.classifier import Classifier, Preprocessing
from dmbp.models.exported_program import program_classifier
from dmbp.models.state_dict import load_state_dict, read_state_dict
from dmbp.models.torchvision_models import import_torchvision


def factory_classifier(name: str, weights: Path | None) -> Classifier:
    """Return the model of a factory as a classifier, with the weights of a file if one is given.

    Raises:
        ModelError: If the module cannot be imported, or the factory is missing, raises an exception
            or returns something else.
        WeightsError: If the weights do not fit.
    """
    factory = _import_attribute(name)
    is_model = isinstance(factory, nn.Module | ExportedProgram | Classifier)
    classifier = _as_classifier(factory if is_model else _call(factory, name), name)
    if weights is not None:
        load_state_dict(classifier.module, read_state_dict(weights), str(weights))
    force_eval(classifier.module)
    return classifier


def _import_attribute(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ModelError(f"{name!r} is not of the form package.module:factory")
    _check_no_file(module_name, attribute, name)
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    if torch.version.cuda is None:  # transformers cannot import torchvision with a CPU build
        with suppress(ImportError):
            import_torchvision()
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise ModelError(f"cannot import {module_name!r}: {error}") from error
    except (Exception, SystemExit) as error:
        raise ModelError(f"{module_name!r} raised {_describe(error)} on import") from error
    factory = getattr(module, attribute, None)
    if not callable(factory) and not isinstance(factory, ExportedProgram | Classifier):
        raise ModelError(f"{module_name!r} has no function {attribute!r}")
    return factory


def _check_no_file(module_name: str, attribute: str, name: str) -> None:
    """Raise a `ModelError` if the module is given as a path instead of a name."""
    if not module_name.endswith(".py") and "/" not in module_name:
        return
    file = Path(module_name).with_suffix("")
    is_inside = not file.is_absolute() and ".." not in file.parts
    where = "" if is_inside else f" in the folder {file.parent}"
    dotted = ".".join(file.parts) if is_inside else file.name
    raise ModelError(f"{name!r} names a file; write the module's name{where}, {dotted}:{attribute}")


def _call(factory: Any, name: str) -> Any:
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise ModelError(f"{name} raised {_describe(error)}") from error


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _as_classifier(model: Any, name: str) -> Classifier:
    module: Any = model.module if isinstance(model, Classifier) else model
    if isinstance(module, ExportedProgram):
        program = program_classifier(module, name)
        return replace(model, module=program.module) if isinstance(model, Classifier) else program
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"{name} returned a {type(model).__name__}, not an nn.Module or a "
            "dmbp.models.Classifier"
        )
    if isinstance(model, Classifier):
        return model
    preprocessing = Preprocessing.for_channels(_input_channels(module))
    return Classifier(name, module, preprocessing, classes=read_labels(module))


def _input_channels(module: nn.Module) -> int:
    """Return the input channels of a network's first convolution, or 3 if it has none."""
    convolutions = (part for part in module.modules() if isinstance(part, nn.Conv2d))
    first = next(convolutions, None)
    return 3 if first is None else first.in_channels


TOLERANCE = 0.1
"""The mean difference allowed between the processor's trial photo and ours, in levels of 255:
torchvision's and Pillow's rounding differ by 0.005, a shift by one pixel makes a difference of
13."""

SQUEEZED_FROM = 384
"""Size from which ConvNeXt's processor squeezes photos; for smaller sizes it crops them."""


def hugging_face_classifier(module: nn.Module, processor: Any, *, name: str = "") -> Classifier:
    """Combine an image classifier of `transformers` with its image processor.

    Args:
        module: The model, such as `AutoModelForImageClassification` loads.
        processor: Its image processor, such as `AutoImageProcessor` loads.
        name: What to call the model; by default the name or folder it was loaded from.

    Returns:
        A classifier with the labels of the model's config, unless they are placeholders, and with
        the processor's preprocessing. Its activation is "sigmoid" if the config says that several
        labels may apply, else "softmax".

    Raises:
        ModelError: If the processor prepares photos in a way that `Preprocessing` cannot express.
    """
    label = name or str(getattr(_config(module), "name_or_path", "")) or type(module).__name__
    is_multi_label = getattr(_config(module), "problem_type", None) == "multi_label_classification"
    activation = "sigmoid" if is_multi_label else "softmax"
    return Classifier(
        label, module.eval(), read_preprocessing(processor), read_labels(module), activation
    )


def read_labels(module: nn.Module) -> tuple[str, ...] | None:
    """Return the class names in a model's config, or None if they are LABEL_0, LABEL_1, …."""
    labels: Any = getattr(_config(module), "id2label", None)
    if not isinstance(labels, Mapping) or set(labels) != set(range(len(labels))):
        return None
    names = tuple(str(labels[k]) for k in range(len(labels)))
    return None if all(name == f"LABEL_{k}" for k, name in enumerate(names)) else names


def read_preprocessing(processor: Any) -> Preprocessing:
    """Return the preprocessing of an image processor.

    Raises:
        ModelError: If its settings, read as `Preprocessing`, prepare a trial photo differently.
    """
    settings: Mapping[str, Any] = processor.to_dict()
    sizes = _read_sizes(settings)
    if not sizes["crop"]:
        raise _unsupported(processor)
    preprocessing = Preprocessing(
        **sizes,
        **_read_normalisation(settings),
        interpolation=Image.Resampling(int(settings.get("resample", Image.Resampling.BILINEAR))),
    )
    photo = _trial_photo()
    theirs: Tensor = processor(photo, return_tensors="pt")["pixel_values"]
    ours = preprocessing.tensor(preprocessing.view(photo))
    std = torch.tensor(preprocessing.std).view(-1, 1, 1)
    if ours.shape != theirs.shape or 255 * ((ours - theirs) * std).abs().mean() > TOLERANCE:
        raise _unsupported(processor)
    return preprocessing


def _read_sizes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Preprocessing` for resizing and cropping."""
    size: Mapping[str, int] = settings.get("size") or {}
    is_cropped = settings.get("do_center_crop")
    crop: Mapping[str, int] = settings.get("crop_size") or {} if is_cropped else {}
    short, side = size.get("shortest_edge"), size.get("height")
    if short is not None and "crop_pct" in settings and not crop:
        if short >= SQUEEZED_FROM:
            return {"crop": short, "fit": "squeeze"}
        return {"resize": int(short / settings["crop_pct"]), "crop": short, "fit": "crop"}
    if crop and (short or side):
        fit = "squeeze-crop" if short is None else "crop"
        return {"resize": short or side, "crop": crop.get("height", 0), "fit": fit}
    return {"crop": short or side or 0, "fit": "squeeze" if short is None else "whole"}


def _read_normalisation(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return mean and std for RGB in [0, 1], whichever range the processor rescales it to."""
    white = 255 * (settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale") else 1.0)
    is_normalised = bool(settings.get("do_normalize"))
    mean = settings["image_mean"] if is_normalised else (0.0, 0.0, 0.0)
    std = settings["image_std"] if is_normalised else (1.0, 1.0, 1.0)
    return {"mean": tuple(m / white for m in mean), "std": tuple(s / white for s in std)}


def _trial_photo() -> Image.Image:
    """Return noise as rough as a photograph, so that a shift by one pixel shows."""
    noise = numpy.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=numpy.uint8)
    return Image.fromarray(noise).resize((400, 300), Image.Resampling.BICUBIC)


def _unsupported(processor: Any) -> ModelError:
    return ModelError(
        f"{type(processor).__name__} prepares photos in a way that dmbp does not support; return a "
        "dmbp.models.Classifier with your own Preprocessing instead"
    )


def _config(module: nn.Module) -> Any:
    return getattr(module, "config", None)
