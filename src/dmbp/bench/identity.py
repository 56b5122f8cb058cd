"""The model of a task, as questions and rows need it: all but the network itself.

A driver that hands its work to others loads a model once, notes this of it and lets it go.
"""

import hashlib
import inspect
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from dmbp.bench.plan import Task
from dmbp.errors import DMBPError
from dmbp.models import Classifier, Preprocessing, load_model
from dmbp.models.classifier import run_classifier


@dataclass(frozen=True)
class ModelIdentity:
    """What a model is called, sees and puts out; `weights` is a digest of what it is."""

    name: str
    weights: str
    preprocessing: Preprocessing
    classes: tuple[str, ...] | None
    activation: str


def subject_of(classifier: Classifier) -> ModelIdentity:
    """What is to be known of a classifier."""
    return ModelIdentity(
        classifier.name,
        weights_digest(classifier),
        classifier.preprocessing,
        classifier.classes,
        classifier.activation,
    )


def task_classifier(task: Task, device: str) -> Classifier:
    """The model of a task on a device, seeing photos as the task says."""
    try:
        return _classifier(task, device)
    except DMBPError as error:
        error.add_note(f"(The model {task.model} of the task {task.name!r}.)")
        raise


def _classifier(task: Task, device: str) -> Classifier:
    classifier = load_model(task.model, weights=task.weights, classes=task.classes)
    classifier.module.to(device).requires_grad_(False)
    noise = classifier.move_inputs(_noise(classifier.preprocessing))
    outputs, classifier = run_classifier(classifier, noise)
    if task.classes is not None:  # else the names are the model's own
        classifier.check_classes(outputs[0])
    if task.fit is None:
        return classifier
    return replace(
        classifier,
        preprocessing=replace(classifier.preprocessing, fit=task.fit),  # pyright: ignore
    )


def _noise(preprocessing: Preprocessing) -> Tensor:
    """An input like a photo's."""
    shape = (1, len(preprocessing.mean), preprocessing.crop, preprocessing.crop)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def weights_digest(classifier: Classifier) -> str:
    """A digest of everything that a model has learned, and of how it computes."""
    digest = hashlib.sha256()
    for line in _architecture(classifier.module):
        digest.update(line.encode())
    for name, tensor in sorted(_tensors(classifier.module).items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """All tensors of a module: its state, buffers that are not saved, and plain attributes."""
    found: dict[str, Tensor] = {**module.state_dict(), **dict(module.named_buffers())}
    for name, part in module.named_modules():
        own = {f"{name}.{k}": v for k, v in vars(part).items() if isinstance(v, Tensor)}
        found |= own
    return found


LIBRARIES = ("builtins", "torch", "torchvision", "timm", "transformers", "dmbp")
"""Whose classes are known by their names; of a user's own, the source says what they compute."""


def _architecture(module: nn.Module) -> Iterator[str]:
    """Every part of a module by name, kind and settings; a user's kinds with their source."""
    for name, part in module.named_modules():
        kind = type(part)
        yield f"{name} {kind.__module__}.{kind.__qualname__} {_settings(part)}"
        if isinstance(part, GraphModule):
            yield part.code
        for base in kind.__mro__:
            if base.__module__.split(".")[0] not in LIBRARIES:
                with suppress(OSError, TypeError):  # typed in, and nowhere to be read
                    yield inspect.getsource(base)


PLAIN = (bool, int, float, str, torch.dtype)

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def _settings(module: nn.Module) -> list[tuple[str, str]]:
    """A module's plain attributes: not its printed form, which changes with torch's versions."""
    library = type(module).__module__.split(".")[0] in LIBRARIES
    return sorted(
        (name, repr(value))
        for name, value in vars(module).items()
        if name not in _OF_EVERY_MODULE
        and not (library and name.startswith("_"))
        and _is_plain(value)
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in cast("Sequence[Any]", value))
    return value is None or isinstance(value, PLAIN)
