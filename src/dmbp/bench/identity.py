"""Identifies a model in a benchmark by a digest, without keeping the network.

A driver whose workers compute elsewhere loads a model once, keeps its `ModelIdentity` and drops the
network. Two models have the same digest if they have the same submodules, settings, source code and
weights, whichever machine loaded them.
"""

import hashlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from dmbp.bench.plan import Task
from dmbp.errors import DMBPError
from dmbp.models import Classifier, Preprocessing, load_model
from dmbp.models.classifier import move_module, run_classifier


@dataclass(frozen=True)
class ModelIdentity:
    """A model's name, preprocessing, classes and activation; `weights` digests the network."""

    name: str
    weights: str
    preprocessing: Preprocessing
    classes: tuple[str, ...] | None
    activation: str


@dataclass(frozen=True)
class TaskModel:
    """A task's model on a device; its weights are digested on first access to its identity."""

    classifier: Classifier

    @cached_property
    def identity(self) -> ModelIdentity:
        """The model's identity."""
        classifier = self.classifier
        return ModelIdentity(
            classifier.name,
            weights_digest(classifier),
            classifier.preprocessing,
            classifier.classes,
            classifier.activation,
        )


def load_task_model(task: Task, device: str) -> TaskModel:
    """Load a task's model on a device, with the task's `fit` and class names.

    Raises:
        DMBPError: If the model cannot be loaded or run; a note names the model and the task.
    """
    try:
        return TaskModel(_classifier(task, device))
    except DMBPError as error:
        error.add_note(f"(The model {task.model} of the task {task.name!r}.)")
        raise


def _classifier(task: Task, device: str) -> Classifier:
    classifier = load_model(
        task.model, weights=task.weights, classes=task.classes, inputs=task.inputs
    )
    move_module(classifier.module, device)
    classifier.module.requires_grad_(False)
    noise = classifier.move_inputs(_noise(classifier.preprocessing))
    outputs, classifier = run_classifier(classifier, noise)
    if task.classes is not None:  # only names from a file may not match
        classifier.check_classes(outputs[0])
    return classifier


def _noise(preprocessing: Preprocessing) -> Tensor:
    """Return noise shaped like a preprocessed photo."""
    shape = (1, len(preprocessing.mean), *preprocessing.size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def weights_digest(classifier: Classifier) -> str:
    """Return a digest of a model's tensors and of its architecture."""
    digest = hashlib.sha256()
    for line in _architecture(classifier.module):
        digest.update(line.encode())
    for name, tensor in sorted(_tensors(classifier.module).items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return all tensors of a module: state dict, non-persistent buffers, plain attributes."""
    tensors: dict[str, Tensor] = {**module.state_dict(), **dict(module.named_buffers())}
    for name, part in module.named_modules():
        tensors |= {f"{name}.{k}": v for k, v in vars(part).items() if isinstance(v, Tensor)}
    return tensors


LIBRARIES = ("builtins", "torch", "torchvision", "timm", "transformers", "dmbp")
"""Packages whose classes are identified by name; other classes also by their source code."""


DIGESTED_NAMES: Mapping[str, str] = {
    "dmbp.linear.model.wrappers.OneAtATime": "dmbp.linear.one_at_a_time.OneAtATime",
    "dmbp.models.exported_program.ChannelsLast": "dmbp.models.input_form.ChannelsLast",
    "dmbp.models.onnx.graph.OnnxModule": "dmbp.models.onnx_files.module.OnnxModule",
    "dmbp.models.onnx.graph.OnnxNodeModule": "dmbp.models.onnx_files.module.Operation",
    "dmbp.models.voc160.ResidualBlock": "dmbp.models.small_resnet.ResidualBlock",
    "dmbp.models.voc160.SmallResNet": "dmbp.models.small_resnet.SmallResNet",
}
"""Names under which dmbp's modules were first digested. They keep these names in digests, so that
results of earlier versions are found."""


def _class_name(kind: type) -> str:
    name = f"{kind.__module__}.{kind.__qualname__}"
    return DIGESTED_NAMES.get(name, name)


def _architecture(module: nn.Module) -> Iterator[str]:
    """Yield every submodule's name, class and settings, and the source of a user's classes."""
    for name, part in module.named_modules():
        kind = type(part)
        yield f"{name} {_class_name(kind)} {_settings(part)}"
        if isinstance(part, GraphModule):
            yield part.code
        for base in kind.__mro__:
            if base.__module__.split(".")[0] not in LIBRARIES:
                with suppress(OSError, TypeError):  # defined interactively, without a file
                    yield inspect.getsource(base)


PLAIN = (bool, int, float, str, torch.dtype)
"""Types of attributes that count as settings, also in lists and tuples."""

_ATTRIBUTES_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def _settings(module: nn.Module) -> list[tuple[str, str]]:
    """Return a module's plain attributes; its `repr` would change with torch's versions."""
    library = type(module).__module__.split(".")[0] in LIBRARIES
    return sorted(
        (name, repr(value))
        for name, value in vars(module).items()
        if name not in _ATTRIBUTES_OF_EVERY_MODULE
        and not (library and name.startswith("_"))
        and _is_plain(value)
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in cast("Sequence[Any]", value))
    return value is None or isinstance(value, PLAIN)
