"""timm's classifiers by name: `timm:resnet50.a1_in1k`, the extra `timm`.

Weights are those that timm downloads, or a file's, whose head may have any number of classes.
Photos are prepared as timm says for the name: size, share of the crop, interpolation, mean and std.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image
from torch import nn

from dmbp.errors import ModelError, WeightsError, suggestion
from dmbp.models.classifier import Classifier, Fit, Preprocessing
from dmbp.models.state_dict import State, fit, part_for, read_state
from dmbp.models.torchvision_models import import_torchvision
from dmbp.process import silence_logging

PREFIX = "timm"

_RESAMPLING: Mapping[str, Image.Resampling] = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

_FITS: Mapping[str, Fit] = {"center": "crop", "squash": "squeeze"}


def timm_classifier(name: str, weights: Path | None) -> Classifier:
    """The model that timm has by that name, with the weights it publishes or a file's."""
    timm = _import(name)
    if weights is None:
        module = _downloaded(timm, name)
    else:
        module = _from_file(timm, name, read_state(weights), str(weights))
    return Classifier(
        f"{PREFIX}:{name}", module.eval(), preprocessing_of(module, name), _classes(module)
    )


def untrained_timm(name: str) -> Classifier:
    """A model of timm's with random weights."""
    module = _made(_import(name), name).eval()
    return Classifier(f"{PREFIX}:{name}", module, preprocessing_of(module, name))


def preprocessing_of(module: nn.Module, name: str) -> Preprocessing:
    """The preprocessing that timm publishes for a model of its own."""
    from timm.data.config import resolve_data_config

    config: Any = resolve_data_config({}, model=module)
    channels, height, width = config["input_size"]
    fits = _FITS.get(config["crop_mode"])
    is_cut = fits == "squeeze" and config["crop_pct"] != 1
    if channels != 3 or height != width or fits is None or is_cut:
        raise ModelError(
            f"timm prepares photos for {name} in a way that dmbp does not know: {config}"
        )
    return Preprocessing(
        resize=math.floor(height / config["crop_pct"]),
        crop=height,
        fit=fits,
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        interpolation=_RESAMPLING[config["interpolation"]],
    )


def _import(name: str) -> Any:
    import_torchvision()  # timm imports it, which fails beside a CPU build of torch
    try:
        import timm
    except ImportError as error:
        raise ModelError(f"{PREFIX}:{name} needs the extra timm: pip install dmbp[timm]") from error
    if not timm.is_model(name.partition(".")[0]):
        raise ModelError(f"timm has no model {name!r}; {suggestion(name, timm.list_models())}")
    return timm


def _downloaded(timm: Any, name: str) -> nn.Module:
    with silence_logging():  # of a download that is tried again and again
        try:
            return timm.create_model(name, pretrained=True)
        except Exception as error:  # of the hub, the network, or a tag that does not exist
            said = " ".join(str(error).split()).partition(". ")[0][:150]
            raise WeightsError(
                f"cannot download the weights of {PREFIX}:{name} ({said}); give a local file with "
                "--weights"
            ) from error


def _from_file(timm: Any, name: str, state: State, source: str) -> nn.Module:
    module = _made(timm, name)
    state = part_for(module, state)
    classes = _classes_in(module, state)
    if classes not in (None, module.num_classes):
        module = _made(timm, name, num_classes=classes)
    fit(module, state, source)
    return module


def _made(timm: Any, name: str, **options: Any) -> Any:
    """A model with random weights."""
    try:
        return timm.create_model(name, pretrained=False, **options)
    except RuntimeError as error:
        raise ModelError(f"timm cannot make {name}: {error}") from error


def _classes_in(module: Any, state: State) -> int | None:
    """The number of classes of a file's head, where there is one with a bias."""
    head = module.pretrained_cfg.get("classifier")
    bias = state.get(f"{head}.bias") if isinstance(head, str) else None
    return None if bias is None else len(bias)


def _classes(module: Any) -> tuple[str, ...] | None:
    """ImageNet's names where timm knows that a model has those classes."""
    from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset(module)
    if subset is None:
        return None
    info = ImageNetInfo(subset)
    return tuple(info.index_to_description(k) for k in range(module.num_classes))
