"""Loads torchvision's models by name, with weights that it publishes or those of a file.

Published weights have names such as IMAGENET1K_V1; without a name, torchvision's default weights
are used. torchvision must be imported with `import_torchvision`: its wheel is built against a CUDA
build of torch, so a plain import fails with a CPU build.
"""

import os
import pickle
import sys
import warnings
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dmbp.errors import ModelError, WeightsError, require_known
from dmbp.models.classifier import ASSUMED_ORIGINS, Classifier, Preprocessing
from dmbp.models.state_dict import StateDict, extract_state_dict, load_state_dict, read_state_dict
from dmbp.models.torchvision_tasks import adapted, is_detector, refuse_two_stages
from dmbp.models.transforms import read_preset

_libraries: list[torch.library.Library] = []

_AUXILIARY = ("aux1.", "aux2.", "AuxLogits.", "aux_classifier.")
"""Key prefixes of heads for training, which do not affect the output in evaluation mode."""


def torchvision_names() -> list[str]:
    """Return the names of torchvision's classifiers, segmentations and detectors of one stage."""
    models = import_torchvision().models
    parts = (models, models.segmentation, models.detection)
    return [
        name for part in parts for name in models.list_models(module=part) if "rcnn" not in name
    ]


def torchvision_classifier(name: str, weights: Path | None) -> Classifier:
    """Return a torchvision model.

    Args:
        name: The architecture.
        weights: A file of weights, or the name of weights that torchvision publishes; None stands
            for torchvision's default weights.

    Returns:
        The model, with ImageNet's class names if it has as many classes.

    Raises:
        ModelError: If torchvision has no such model, or it is a detector with two stages.
        WeightsError: If the weights do not exist, cannot be downloaded, or do not fit.
    """
    refuse_two_stages(name)
    require_known("model", name, torchvision_names(), error=ModelError)
    models = import_torchvision().models
    published = models.get_model_weights(name)
    named = _published_weights(published, weights)
    categories = tuple(published.DEFAULT.meta["categories"])
    if named is not None:
        module = _download(models, name, named)
        return _classifier(name, module, named, categories)
    assert weights is not None
    module = _from_file(models, name, weights)
    fits = is_detector(module) or _output_count(module) == len(categories)
    names = categories if fits else None
    return _classifier(name, module, published.DEFAULT, names)


def untrained_torchvision(name: str) -> Classifier:
    """Return a torchvision model with random weights."""
    models = import_torchvision().models
    return _classifier(name, _build(models, name, {}), models.get_model_weights(name).DEFAULT)


def _classifier(
    name: str, module: nn.Module, weights: Any, classes: tuple[str, ...] | None = None
) -> Classifier:
    """Return a model with the preprocessing that torchvision publishes with these weights."""
    return adapted(Classifier(name, module.eval(), _read_preprocessing(weights), classes))


def _published_weights(published: Any, weights: Path | None) -> Any:
    """Return the published weights that `weights` names, or None if it is a file."""
    if weights is None:
        return published.DEFAULT
    # A benchmark plan prepends its folder to the weights, so only the last part is the name.
    if weights.suffix or os.path.exists(weights) or weights.name != weights.name.upper():
        return None
    require_known(
        "weights of torchvision", weights.name, list(published.__members__), error=WeightsError
    )
    return published[weights.name]


def _download(models: Any, name: str, weights: Any) -> nn.Module:
    try:
        return models.get_model(name, weights=weights)
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        folder = Path(torch.hub.get_dir()) / "checkpoints"
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightsError(
            f"cannot download the weights of {name} ({reason}); put {Path(weights.url).name} into "
            f"{folder}, or give a local file with --weights"
        ) from error


def _from_file(models: Any, name: str, path: Path) -> nn.Module:
    module = _build(models, name, {})
    state = extract_state_dict(module, read_state_dict(path), optional=_AUXILIARY)
    classes = None if is_detector(module) else _head_size(module, state)
    if classes is not None:
        module = _build(models, name, {"num_classes": classes})
    load_state_dict(module, state, str(path), optional=_AUXILIARY)
    return module


def _build(models: Any, name: str, options: dict[str, Any]) -> nn.Module:
    if name in ("googlenet", "inception_v3"):
        options = {**options, "init_weights": False}  # slow, and overwritten by the file's weights
    if name not in models.list_models(module=models):
        options = {**options, "weights_backbone": None}
    return models.get_model(name, weights=None, **options)


def _head_size(module: nn.Module, state: StateDict) -> int | None:
    """Return the number of classes in a fine-tuned file, or None if it is the default."""
    for key, tensor in reversed(module.state_dict().items()):
        if tensor.dim() == 0 or key.startswith(_AUXILIARY):
            continue
        stored = state.get(key)
        if stored is None or stored.shape == tensor.shape or stored.shape[1:] != tensor.shape[1:]:
            return None
        return int(stored.shape[0])
    return None


def _output_count(module: nn.Module) -> int:
    return [t for t in module.state_dict().values() if t.dim() > 0][-1].shape[0]


def _read_preprocessing(weights: Any) -> Preprocessing:
    """Return the preprocessing that torchvision publishes with these weights."""
    preset: Any = weights.transforms()
    if not hasattr(preset, "resize_size"):  # a detector prepares photos itself
        return Preprocessing()
    return read_preset(preset)


def recognised(module: nn.Module) -> Classifier | None:
    """Return a module of torchvision as a model with the preprocessing of its architecture.

    It is that of the architecture's default weights, and ImageNet's class names are taken if there
    are as many outputs. Returns None if the architecture is not one of torchvision's.
    """
    models = import_torchvision().models
    name = _architecture_of(module, models)
    if name is None:
        return None
    weights = models.get_model_weights(name).DEFAULT
    categories = tuple(weights.meta["categories"])
    fits = is_detector(module) or _output_count(module) == len(categories)
    origins = dict.fromkeys(ASSUMED_ORIGINS, f"torchvision's {name}")
    preprocessing = _read_preprocessing(weights)
    return adapted(
        Classifier(name, module, preprocessing, categories if fits else None, origins=origins)
    )


def _architecture_of(module: nn.Module, models: Any) -> str | None:
    """Return the name of a module's architecture, by the shapes of its weights but the head's."""
    source = type(module).__module__
    names = [k for k in _all_names(models) if models.get_model_builder(k).__module__ == source]
    own = _shapes(module)
    return next((name for name in names if _shapes_of(name) == own), None)


def _all_names(models: Any) -> list[str]:
    parts = (models, models.segmentation, models.detection)
    return [name for part in parts for name in models.list_models(module=part)]


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    """Return the shapes of all weights but those of the head, which a user may have replaced."""
    shapes = {
        key: tensor.shape
        for key, tensor in module.state_dict().items()
        if not key.startswith(_AUXILIARY)
    }
    head = next(reversed(shapes), "").partition(".")[0]
    return {key: shape for key, shape in shapes.items() if not key.startswith(f"{head}.")}


@cache
def _shapes_of(name: str) -> dict[str, torch.Size]:
    """Return the same for an architecture by name, which is built without data."""
    with torch.device("meta"):
        return _shapes(_build(import_torchvision().models, name, {}))


def import_torchvision() -> Any:
    """Import torchvision, also with a CPU build of torch.

    With a CPU build the import fails with "operator torchvision::nms does not exist". If two
    operators are declared, models and weights can be imported; only torchvision's image reader and
    NMS, which dmbp does not use, remain unavailable.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchvision warns that its image extension is missing
        try:
            return import_module("torchvision")
        except RuntimeError as error:
            if "torchvision::nms" not in str(error):
                raise
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _libraries.append(library)  # operators are removed with their library
        _unload("torchvision")
        return import_module("torchvision")


def _unload(package: str) -> None:
    """Drop a half-imported package, so that the next import starts over."""
    for name in [n for n in sys.modules if n == package or n.startswith(package + ".")]:
        del sys.modules[name]
