"""The model of a task, as questions and rows need it: all but the network itself.

A driver that hands its work to others loads a model once, notes this of it and lets it go.
"""

import hashlib
from dataclasses import dataclass, replace

import torch

from dmbp.bench.plan import Task
from dmbp.models import Classifier, Preprocessing, load_model


@dataclass(frozen=True)
class Subject:
    """What a model is called, sees and puts out; `weights` is a digest of all it has learned."""

    name: str
    weights: str
    preprocessing: Preprocessing
    classes: tuple[str, ...] | None
    activation: str


def subject_of(classifier: Classifier) -> Subject:
    """What is to be known of a classifier."""
    return Subject(
        classifier.name,
        weights_digest(classifier),
        classifier.preprocessing,
        classifier.classes,
        classifier.activation,
    )


def task_classifier(task: Task, device: str) -> Classifier:
    """The model of a task on a device, seeing photos as the task says."""
    classifier = load_model(task.model, weights=task.weights, classes=task.classes)
    classifier.module.to(device).requires_grad_(False)
    if task.fit is None:
        return classifier
    return replace(
        classifier,
        preprocessing=replace(classifier.preprocessing, fit=task.fit),  # pyright: ignore
    )


def weights_digest(classifier: Classifier) -> str:
    """A digest of everything that a model has learned."""
    digest = hashlib.sha256()
    for name, tensor in sorted(classifier.module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
