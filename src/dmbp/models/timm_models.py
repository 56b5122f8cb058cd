"""Loads timm's classifiers by name, `timm:resnet50.a1_in1k` (the `timm` extra).

The weights are those that timm downloads, or those of a file, whose head may have any number of
classes. The preprocessing is timm's for the name: size, fraction that is cropped, interpolation,
mean and std.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from PIL import Image
from torch import nn

from dmbp.errors import InputError, ModelError, WeightsError, suggestion
from dmbp.models.classifier import ASSUMED_ORIGINS, Classifier, Fit, Preprocessing
from dmbp.models.input_settings import SettingsLayer, settings_of
from dmbp.models.state_dict import StateDict, extract_state_dict, load_state_dict, read_state_dict
from dmbp.models.text_files import check_class_names
from dmbp.models.torchvision_models import import_torchvision
from dmbp.process import silence_logging

PREFIX = "timm"

_RESAMPLING: Mapping[str, Image.Resampling] = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def timm_classifier(name: str, weights: Path | None) -> Classifier:
    """Return a timm model with the weights that timm publishes or those of a file.

    Raises:
        ModelError: If timm is not installed, has no such model, or prepares photos for it in a way
            that `Preprocessing` cannot express.
        WeightsError: If the weights cannot be downloaded, or the file does not fit.
    """
    timm = _import_timm(name)
    if weights is None:
        module = _download(timm, name)
    else:
        module = _from_file(timm, name, read_state_dict(weights), str(weights))
    return Classifier(
        f"{PREFIX}:{name}", module.eval(), read_preprocessing(module, name), _class_names(module)
    )


def untrained_timm(name: str) -> Classifier:
    """Return a timm model with random weights."""
    module = _create(_import_timm(name), name).eval()
    return Classifier(f"{PREFIX}:{name}", module, read_preprocessing(module, name))


def recognised(module: Any) -> Classifier:
    """Return a module of timm as a model with the preprocessing of its configuration.

    Raises:
        ModelError: If timm prepares photos in a way that `Preprocessing` cannot express.
    """
    config: Any = getattr(module, "pretrained_cfg", None) or {}
    name = str(config.get("architecture") or type(module).__name__)
    origins = dict.fromkeys(ASSUMED_ORIGINS, f"timm's {name}")
    preprocessing = read_preprocessing(module, name)
    return Classifier(
        f"{PREFIX}:{name}", module, preprocessing, _class_names(module), origins=origins
    )


def read_preprocessing(module: nn.Module, name: str) -> Preprocessing:
    """Return the preprocessing that timm publishes for one of its models."""
    from timm.data.config import resolve_data_config

    config: Any = resolve_data_config({}, model=module)
    return _preprocessing(config, name)


def layer_from_config(table: Mapping[str, Any], origin: str) -> SettingsLayer:
    """Return the preprocessing and labels in a `config.json` as timm writes it beside weights.

    Raises:
        ModelError: If a value is missing, or photos are prepared in a way that is not supported.
    """
    config = {**_DEFAULTS, **table["pretrained_cfg"]}
    config = {key: config.get(key) for key in (*_DEFAULTS, "input_size", "mean", "std")}
    settings = settings_of(_preprocessing(config, origin))
    labels = table.get("label_names") or table["pretrained_cfg"].get("label_names")
    names = isinstance(labels, list) and all(isinstance(name, str) for name in labels)
    classes = check_class_names(cast("list[str]", labels), origin, item="label") if names else None
    return SettingsLayer(origin, settings, classes, conventional=True)


_DEFAULTS = {"crop_pct": 0.875, "crop_mode": "center", "interpolation": "bicubic"}
"""timm's values of settings that a `pretrained_cfg` may leave out."""


def _preprocessing(config: Mapping[str, Any], name: str) -> Preprocessing:
    """Return the preprocessing that timm's settings describe."""
    try:
        channels, height, width = config["input_size"]
        squeezed = "squeeze" if config["crop_pct"] == 1 else "squeeze-crop"
        fits: Mapping[str, Fit] = {"center": "crop", "squash": squeezed}
        preprocessing = Preprocessing(
            resize=(
                math.floor(height / config["crop_pct"]),
                math.floor(width / config["crop_pct"]),
            ),
            crop=(height, width),
            fit=fits[config["crop_mode"]],
            mean=config["mean"],
            std=config["std"],
            interpolation=_RESAMPLING[config["interpolation"]],
        )
        if channels != len(preprocessing.mean):
            raise ValueError
    except (ArithmeticError, KeyError, TypeError, ValueError, InputError) as error:
        raise ModelError(
            f"timm prepares photos for {name} in a way that dmbp does not support: {config}"
        ) from error
    return preprocessing


def _import_timm(name: str) -> Any:
    import_torchvision()  # timm's import of it would fail with a CPU build of torch
    try:
        import timm
    except ImportError as error:
        raise ModelError(f"{PREFIX}:{name} needs the extra timm: pip install dmbp[timm]") from error
    if not timm.is_model(name.partition(".")[0]):
        raise ModelError(f"timm has no model {name!r}; {suggestion(name, timm.list_models())}")
    return timm


def _download(timm: Any, name: str) -> nn.Module:
    with silence_logging():  # the hub logs every attempt at a download
        try:
            return timm.create_model(name, pretrained=True)
        except Exception as error:  # from the hub, the network, or an unknown tag
            reason = " ".join(str(error).split()).partition(". ")[0][:150]
            raise WeightsError(
                f"cannot download the weights of {PREFIX}:{name} ({reason}); give a local file "
                "with --weights"
            ) from error


def _from_file(timm: Any, name: str, state: StateDict, source: str) -> nn.Module:
    module = _create(timm, name)
    state = extract_state_dict(module, state)
    classes = _head_size(module, state)
    if classes not in (None, module.num_classes):
        module = _create(timm, name, num_classes=classes)
    load_state_dict(module, state, source)
    return module


def _create(timm: Any, name: str, **options: Any) -> Any:
    """Create a model with random weights."""
    try:
        return timm.create_model(name, pretrained=False, **options)
    except RuntimeError as error:
        raise ModelError(f"timm cannot make {name}: {error}") from error


def _head_size(module: Any, state: StateDict) -> int | None:
    """Return the number of classes in a file's head, or None if it has no head with a bias."""
    head = module.pretrained_cfg.get("classifier")
    bias = state.get(f"{head}.bias") if isinstance(head, str) else None
    return None if bias is None else len(bias)


def _class_names(module: Any) -> tuple[str, ...] | None:
    """Return the class names if timm knows that the model has ImageNet's classes."""
    from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset(module)
    if subset is None:
        return None
    info = ImageNetInfo(subset)
    return tuple(info.index_to_description(k) for k in range(module.num_classes))
