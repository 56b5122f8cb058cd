"""The questions of a task: every class on every photo, a few photos at a time."""

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dmbp.bench.identity import ModelIdentity
from dmbp.bench.plan import Task
from dmbp.bench.store import Store
from dmbp.data.dataset import read_dataset
from dmbp.data.sample import Label, Sample
from dmbp.errors import TargetError

PHOTOS_AT_ONCE = 256

READERS = 8
"""Threads that read files to digest them: on a file server each waits for most of its time."""

Shard = tuple[int, int]
"""(i, n): every n-th photo from the i-th, counted from 0."""


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


def question_count(task: Task, shard: Shard = (0, 1)) -> int:
    """How many questions a task has; nothing is opened but the dataset's lists."""
    return sum(len(sample.labels) for sample in _samples(task, shard))


def questions(
    task: Task, subject: ModelIdentity, store: Store, *, shard: Shard = (0, 1)
) -> Iterator[list[Asked]]:
    """The questions of a task, those of some photos at a time; of a shard every n-th photo's."""
    mine = _samples(task, shard)
    for start in range(0, len(mine), PHOTOS_AT_ONCE):
        yield _asked(mine[start : start + PHOTOS_AT_ONCE], subject, store)


def _samples(task: Task, shard: Shard) -> Sequence[Sample]:
    part, parts = shard
    return read_dataset(task.dataset, task.path).first(task.first).samples[part::parts]


def _asked(samples: Sequence[Sample], subject: ModelIdentity, store: Store) -> list[Asked]:
    found: list[Asked] = []
    digests = _digests([sample.path for sample in samples], store)
    for sample in samples:
        indices = [class_index(label, subject, sample) for label in sample.labels]
        photo, problem = digests[sample.path]
        for label, index in zip(sample.labels, indices, strict=True):
            others = tuple(other for other in indices if other != index)
            found.append(Asked(sample, label, index, others, photo, problem))
    return found


def _digests(paths: Sequence[Path], store: Store) -> dict[Path, tuple[str, str | None]]:
    """Each file's digest, or why there is none."""
    found: dict[Path, tuple[str, str | None]] = {}
    unknown: list[Path] = []
    for path in paths:
        noted = store.digest(path)
        if noted is None:
            unknown.append(path)
        else:
            found[path] = (noted, None)
    with ThreadPoolExecutor(READERS) as pool:
        read = dict(zip(unknown, pool.map(_digest, unknown), strict=True))
    store.note_digests({path: digest for path, (digest, why) in read.items() if why is None})
    return found | read


def _digest(path: Path) -> tuple[str, str | None]:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16], None
    except OSError as error:
        return "unreadable", f"cannot read {path}: {error.strerror}"


def class_index(label: Label, subject: ModelIdentity, sample: Sample) -> int:
    """The output that a label stands for: by number, or by its whole name."""
    if isinstance(label, int):
        return label
    if subject.classes is None:
        raise TargetError(
            f"{sample.name} is labelled {label!r}, but {subject.name} knows its classes by "
            "number: give their names with 'classes'"
        )
    if label not in subject.classes:
        raise TargetError(f"{sample.name} is labelled {label!r}, no class of {subject.name}")
    return subject.classes.index(label)
