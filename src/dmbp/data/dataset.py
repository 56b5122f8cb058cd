"""Datasets: photographs by a stable name, and what is on each.

Nothing is decoded here: a sample is a name and its labels, so fifty thousand are ten megabytes, and
a broken photo is met by whoever opens it.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dmbp.data.imagenet import read_imagenet
from dmbp.data.sample import Label, Sample, read_manifest, samples_in
from dmbp.data.voc import VocImage, read_voc
from dmbp.errors import PhotoError, require_known

Reader = Callable[[Path], list[Sample]]


@dataclass(frozen=True)
class Dataset:
    """Samples under a folder; `kind` is how they were read."""

    kind: str
    root: Path
    samples: tuple[Sample, ...]

    def first(self, count: int | None) -> "Dataset":
        """The first samples alone."""
        return Dataset(self.kind, self.root, self.samples[:count])


def read_dataset(kind: str, root: Path) -> Dataset:
    """A dataset of a kind in the table."""
    require_known("kind of dataset", kind, READERS)
    if not root.exists():
        raise PhotoError(f"there is no folder or file {root}")
    return Dataset(kind, root, tuple(READERS[kind](root)))


def read_folder(root: Path) -> list[Sample]:
    """Photos in a folder for each class, named after it."""
    if not root.is_dir():
        raise PhotoError(f"{root} is not a folder")
    classes = sorted(path for path in root.iterdir() if path.is_dir())
    found = [sample for folder in classes for sample in samples_in(folder, folder.name)]
    if not found:
        raise PhotoError(f"{root} has no folders with photos, one folder for each class")
    return found


def read_imagenet_5k(root: Path) -> list[Sample]:
    """Five photos a class of ImageNet's validation set, drawn at random, always the same ones."""
    classes: dict[Label, list[Sample]] = {}
    for sample in read_imagenet(root):
        classes.setdefault(sample.labels[0], []).append(sample)
    draw = random.Random(0)
    return [
        sample
        for label in sorted(classes, key=str)
        for sample in draw.sample(classes[label], min(5, len(classes[label])))
    ]


def read_voc_samples(root: Path, *, difficult: bool = True) -> list[Sample]:
    """The photos of a VOC folder, those of its `val` list where it has one.

    Where not `difficult`, classes with difficult instances alone are left out, and photos that have
    no others.
    """
    listed = root / "ImageSets" / "Main" / "val.txt"
    images = read_voc(root)
    if listed.is_file():
        wanted = set(_text(listed).split())
        images = [image for image in images if image.path.stem in wanted]
        if not images:
            raise PhotoError(f"none of the photos that {listed} lists is annotated in {root}")
    samples = [_voc_sample(image, difficult=difficult) for image in images]
    labelled = [sample for sample in samples if sample.labels]
    if not labelled:
        raise PhotoError(f"no photo of {root} has an object that counts")
    return labelled


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PhotoError(f"cannot read {path}: {error}") from error


def _voc_sample(image: VocImage, *, difficult: bool) -> Sample:
    labels: Sequence[Label] = image.classes(difficult=difficult)
    path = image.path
    return Sample(path.stem, path.parent, path.name, tuple(labels), image)


READERS: Mapping[str, Reader] = {
    "imagenet": read_imagenet,  # ILSVRC2012 val, by synset or flat
    "imagenet-5k": read_imagenet_5k,  # five photos a class of it
    "voc": read_voc_samples,  # VOC2012 val, a class counts whatever its difficult flag
    "voc-not-difficult": partial(read_voc_samples, difficult=False),
    "folder": read_folder,  # a folder for each class
    "manifest": read_manifest,  # a CSV of files and labels
}
