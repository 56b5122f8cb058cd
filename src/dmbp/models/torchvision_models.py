"""Imports torchvision, also beside a CPU build of torch.

torchvision's wheel is built against CUDA torch. Beside a CPU build its import stops at "operator
torchvision::nms does not exist". Declaring the two operators lets models and weights import; only
its own image reader and NMS, which dmbp does not use, stay unavailable.

torchvision's classifiers by name, with weights that it publishes or a file of one's own.

Published weights go by torchvision's names, such as IMAGENET1K_V1; without a name, its default.
"""

import pickle
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

from dmbp.errors import ModelError, WeightsError, require_known
from dmbp.models.classifier import Classifier, Preprocessing
from dmbp.models.state_dict import State, fit, part_for, read_state

_libraries: list[torch.library.Library] = []


def import_torchvision() -> Any:
    """The torchvision package."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks about its missing image extension
        try:
            return import_module("torchvision")
        except RuntimeError as error:
            if "torchvision::nms" not in str(error):
                raise
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _libraries.append(library)  # an operator lives as long as its library
        _forget("torchvision")
        return import_module("torchvision")


def _forget(package: str) -> None:
    """Drop a half-imported package, so that the next import starts over."""
    import sys

    for name in [n for n in sys.modules if n == package or n.startswith(package + ".")]:
        del sys.modules[name]


# Heads that help in training and do not touch the output in evaluation.
_AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")


def torchvision_names() -> list[str]:
    """The classifiers that torchvision has."""
    models = import_torchvision().models
    return list(models.list_models(module=models))


def torchvision_classifier(name: str, weights: Path | None) -> Classifier:
    """A torchvision model with weights it publishes, its default or those named, or a file's."""
    require_known("model", name, torchvision_names(), error=ModelError)
    models = import_torchvision().models
    published = models.get_model_weights(name)
    named = _named(published, weights)
    categories = tuple(published.DEFAULT.meta["categories"])
    if named is not None:
        module = _downloaded(models, name, named)
        return Classifier(name, module.eval(), _preprocessing(named), categories)
    assert weights is not None
    module = _from_file(models, name, weights)
    names = categories if _outputs(module) == len(categories) else None
    return Classifier(name, module.eval(), _preprocessing(published.DEFAULT), names)


def untrained_torchvision(name: str) -> Classifier:
    """A torchvision model with random weights."""
    models = import_torchvision().models
    preprocessing = _preprocessing(models.get_model_weights(name).DEFAULT)
    return Classifier(name, _build(models, name, {}).eval(), preprocessing)


def _named(published: Any, weights: Path | None) -> Any:
    """The published weights that are meant, if it is not a file."""
    if weights is None:
        return published.DEFAULT
    # A plan's weights are a path from where it lies, so the last part is the name.
    if weights.suffix or weights.exists() or weights.name != weights.name.upper():
        return None
    require_known(
        "weights of torchvision", weights.name, list(published.__members__), error=WeightsError
    )
    return published[weights.name]


def _downloaded(models: Any, name: str, weights: Any) -> nn.Module:
    try:
        return models.get_model(name, weights=weights)
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        folder = Path(torch.hub.get_dir()) / "checkpoints"
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightsError(
            f"cannot download the weights of {name} ({said}); put {Path(weights.url).name} into "
            f"{folder}, or give a local file with --weights"
        ) from error


def _from_file(models: Any, name: str, path: Path) -> nn.Module:
    module = _build(models, name, {})
    state = part_for(module, read_state(path), optional=_AUXILIARY)
    classes = _classes_in(module, state)
    if classes is not None:
        module = _build(models, name, {"num_classes": classes})
    fit(module, state, str(path), optional=_AUXILIARY)
    return module


def _build(models: Any, name: str, options: dict[str, Any]) -> nn.Module:
    if name in ("googlenet", "inception_v3"):
        options = {**options, "init_weights": False}  # slow, and overwritten by the file
    return models.get_model(name, weights=None, **options)


def _classes_in(module: nn.Module, state: State) -> int | None:
    """The number of classes a fine-tuned file has, where it is not the architecture's own."""
    for key, tensor in reversed(module.state_dict().items()):
        if tensor.dim() == 0 or key.startswith(_AUXILIARY):
            continue
        found = state.get(key)
        if found is None or found.shape == tensor.shape or found.shape[1:] != tensor.shape[1:]:
            return None
        return int(found.shape[0])
    return None


def _outputs(module: nn.Module) -> int:
    return [t for t in module.state_dict().values() if t.dim() > 0][-1].shape[0]


def _preprocessing(weights: Any) -> Preprocessing:
    """The preprocessing that torchvision publishes with these weights."""
    preset: Any = weights.transforms()
    resampling: dict[str, Image.Resampling] = {
        "bilinear": Image.Resampling.BILINEAR,
        "bicubic": Image.Resampling.BICUBIC,
    }
    return Preprocessing(
        resize=_single(preset.resize_size),
        crop=_single(preset.crop_size),
        mean=tuple(preset.mean),
        std=tuple(preset.std),
        interpolation=resampling[preset.interpolation.value],
    )


def _single(size: int | Sequence[int]) -> int:
    return size if isinstance(size, int) else size[0]
