"""The questions of a task: every class on every photo, a few photos at a time."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from dmbp.bench.plan import Task
from dmbp.bench.store import Store
from dmbp.data.dataset import read_dataset
from dmbp.data.sample import Label, Sample
from dmbp.errors import TargetError
from dmbp.models import Classifier, load_model

PHOTOS_AT_ONCE = 256


@dataclass(frozen=True)
class Asked:
    """A class on a photo: its index among the model's outputs, and those of the other classes.

    `photo` is the digest of the file; where that cannot be read, `problem` says why.
    """

    sample: Sample
    label: Label
    index: int
    others: tuple[int, ...]
    photo: str
    problem: str | None = None


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


def questions(
    task: Task, classifier: Classifier, store: Store, *, shard: tuple[int, int] = (0, 1)
) -> Iterator[list[Asked]]:
    """The questions of a task, those of some photos at a time; of a shard every n-th photo's."""
    samples = read_dataset(task.dataset, task.path).first(task.first).samples
    part, parts = shard
    mine = samples[part::parts]
    for start in range(0, len(mine), PHOTOS_AT_ONCE):
        yield _asked(mine[start : start + PHOTOS_AT_ONCE], classifier, store)


def _asked(samples: Sequence[Sample], classifier: Classifier, store: Store) -> list[Asked]:
    found: list[Asked] = []
    noted = {}
    for sample in samples:
        indices = [class_index(label, classifier, sample) for label in sample.labels]
        problem, photo = None, "unreadable"
        try:
            photo = store.digest(sample.path) or ""
            if not photo:
                photo = hashlib.sha256(sample.path.read_bytes()).hexdigest()[:16]
                noted[sample.path] = photo
        except OSError as error:
            problem = f"cannot read {sample.path}: {error.strerror}"
        for label, index in zip(sample.labels, indices, strict=True):
            others = tuple(other for other in indices if other != index)
            found.append(Asked(sample, label, index, others, photo, problem))
    store.note_digests(noted)
    return found


def class_index(label: Label, classifier: Classifier, sample: Sample) -> int:
    """The output that a label stands for: by number, or by its whole name."""
    if isinstance(label, int):
        return label
    if classifier.classes is None:
        raise TargetError(
            f"{sample.name} is labelled {label!r}, but {classifier.name} knows its classes by "
            "number: give their names with 'classes'"
        )
    if label not in classifier.classes:
        raise TargetError(f"{sample.name} is labelled {label!r}, no class of {classifier.name}")
    return classifier.classes.index(label)
