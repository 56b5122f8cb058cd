"""The questions of a task: every class on every photo, for a few photos at a time."""

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dmbp.bench.identity import ModelIdentity
from dmbp.bench.plan import Task
from dmbp.bench.store import DigestCache
from dmbp.data.dataset import read_dataset
from dmbp.data.sample import Label, Sample
from dmbp.errors import TargetError

PHOTOS_AT_ONCE = 256

READER_THREADS = 8
"""Threads that read files to digest them: on a file server each waits for most of its time."""

Shard = tuple[int, int]
"""(i, n): every n-th photo from the i-th, counted from 0."""

WHOLE: Shard = (0, 1)


@dataclass(frozen=True)
class PhotoTarget:
    """A class on a photo: the question that every method is asked.

    `index` is the class among the model's outputs, `others` are the other classes on the photo.
    `digest` is that of the photo's file; if the file cannot be read, `problem` says why.
    """

    sample: Sample
    label: Label
    index: int
    others: tuple[int, ...]
    digest: str
    problem: str | None = None


def question_count(task: Task, shard: Shard = WHOLE) -> int:
    """Return how many questions a task has; only the dataset's lists are opened."""
    return sum(len(sample.labels) for sample in _samples(task, shard))


def questions(
    task: Task, identity: ModelIdentity, digests: DigestCache, *, shard: Shard = WHOLE
) -> Iterator[list[PhotoTarget]]:
    """Yield the questions of a task, those of some photos at a time."""
    samples = _samples(task, shard)
    for start in range(0, len(samples), PHOTOS_AT_ONCE):
        yield _targets(samples[start : start + PHOTOS_AT_ONCE], identity, digests)


def _samples(task: Task, shard: Shard) -> Sequence[Sample]:
    part, parts = shard
    return read_dataset(task.dataset, task.path).first(task.first).samples[part::parts]


def _targets(
    samples: Sequence[Sample], identity: ModelIdentity, digests: DigestCache
) -> list[PhotoTarget]:
    found: list[PhotoTarget] = []
    by_path = _digests([sample.path for sample in samples], digests)
    for sample in samples:
        indices = [class_index(label, identity, sample) for label in sample.labels]
        digest, problem = by_path[sample.path]
        for label, index in zip(sample.labels, indices, strict=True):
            others = tuple(other for other in indices if other != index)
            found.append(PhotoTarget(sample, label, index, others, digest, problem))
    return found


def _digests(paths: Sequence[Path], cache: DigestCache) -> dict[Path, tuple[str, str | None]]:
    """Return each file's digest, and why it has none."""
    known = {path: digest for path in paths if (digest := cache.get(path)) is not None}
    unknown = [path for path in paths if path not in known]
    with ThreadPoolExecutor(READER_THREADS) as threads:
        read = dict(zip(unknown, threads.map(_digest, unknown), strict=True))
    cache.put({path: digest for path, (digest, problem) in read.items() if problem is None})
    return {path: (digest, None) for path, digest in known.items()} | read


def _digest(path: Path) -> tuple[str, str | None]:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16], None
    except OSError as error:
        return "unreadable", f"cannot read {path}: {error.strerror}"


def class_index(label: Label, identity: ModelIdentity, sample: Sample) -> int:
    """Return the output that a label stands for: by number, or by its whole name."""
    if isinstance(label, int):
        return label
    if identity.classes is None:
        raise TargetError(
            f"{sample.name} is labelled {label!r}, but {identity.name} knows its classes by "
            "number: give their names with 'classes'"
        )
    if label not in identity.classes:
        raise TargetError(f"{sample.name} is labelled {label!r}, no class of {identity.name}")
    return identity.classes.index(label)
