"""Reads datasets: `read_dataset`, and the table of all kinds of dataset.

No photo is opened. A sample is a name and its labels, so fifty thousand samples take ten megabytes,
and a broken photo raises an error only in the code that opens it.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dmbp.data.paper_datasets import read_imagenet, read_imagenet_5k, read_voc_samples
from dmbp.data.sample import Sample, read_folder, read_manifest
from dmbp.errors import PhotoError, require_known
from dmbp.files import shown

Reader = Callable[[Path], list[Sample]]
"""Returns the samples of the dataset in a folder or file."""

READERS: Mapping[str, Reader] = {
    "imagenet": read_imagenet,  # ILSVRC2012 val, in folders by synset or flat
    "imagenet-5k": read_imagenet_5k,  # five photos of each class
    "voc": read_voc_samples,  # VOC2012 val; a class counts whatever its difficult flag
    "voc-not-difficult": partial(read_voc_samples, difficult=False),
    "folder": read_folder,  # one folder for each class
    "manifest": read_manifest,  # a CSV of files and labels
}


@dataclass(frozen=True)
class Dataset:
    """The samples of a dataset.

    Args:
        kind: The kind of dataset, a key of `READERS`.
        root: The dataset's folder, or the CSV file of a manifest.
        samples: The photos with their labels, in a fixed order.
    """

    kind: str
    root: Path
    samples: tuple[Sample, ...]

    def first(self, count: int | None) -> "Dataset":
        """Return a dataset of the first `count` samples, or of all if that is None."""
        return Dataset(self.kind, self.root, self.samples[:count])


def read_dataset(kind: str, root: Path) -> Dataset:
    """Read the names and labels of a dataset's photos.

    Args:
        kind: A key of `READERS`.
        root: The dataset's folder, or the CSV file of a manifest.

    Returns:
        The dataset, with its samples in a fixed order.

    Raises:
        InputError: If there is no such kind.
        PhotoError: If `root` does not exist or is not laid out as the kind requires.
    """
    require_known("kind of dataset", kind, READERS)
    if not os.path.exists(root):
        raise PhotoError(f"there is no folder or file {shown(root)}")
    return Dataset(kind, root, tuple(READERS[kind](root)))
