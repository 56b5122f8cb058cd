"""Identifies a model in a benchmark by a digest, without keeping the network.

A driver whose workers compute elsewhere loads a model once, keeps its `ModelIdentity` and drops the
network.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dmbp.bench.plan import Task
from dmbp.errors import DMBPError
from dmbp.models import Classifier, Preprocessing, load_model
from dmbp.models.classifier import move_module, run_classifier
from dmbp.models.digest import module_digest


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
    return module_digest(classifier.module)
