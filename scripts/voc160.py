"""PASCAL VOC2012 at 160×160: reading the images and labels, and scoring a classifier on them.

The data folder holds `voc160_{train,unlabelled,val}.tar`, each a folder of JPEG files, and
`voc160_labels.csv` with one row per image: its name, its split, then '1', '0' or '?' for each
class. '?' means that only difficult instances of the class are visible; the class is then left out
of the score. The entries of unlabelled images are empty.
"""

import csv
import io
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from dmbp.models.voc160 import CLASSES, MEAN, STD

LABEL_VALUES = {"1": 1, "0": 0, "?": -1}


def read_images(data: Path, split: str) -> tuple[list[str], Tensor]:
    """Read a split's names and images; images are uint8 RGB, (image, channel, height, width)."""
    with tarfile.open(data / f"voc160_{split}.tar") as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        names = [Path(member.name).stem for member in members]
        files = [_read_member(archive, member) for member in members]
    with ThreadPoolExecutor() as executor:
        images = list(executor.map(_decode, files))
    return names, torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()


def read_labels(data: Path, names: list[str]) -> Tensor:
    """Read the labels of images, (image, class): 1 present, 0 absent, -1 not counted."""
    with (data / "voc160_labels.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    if tuple(header[2:]) != CLASSES:
        raise ValueError(f"expected the columns {CLASSES}, found {header[2:]}")
    entries = {row[0]: row[2:] for row in rows}
    return torch.tensor([[LABEL_VALUES[entry] for entry in entries[name]] for name in names])


def normalise(images: Tensor) -> Tensor:
    """Normalise uint8 (or float in 0..255) RGB images for the classifier and its teacher."""
    mean = torch.tensor(MEAN, device=images.device).view(1, 3, 1, 1)
    std = torch.tensor(STD, device=images.device).view(1, 3, 1, 1)
    return (images.float() / 255 - mean) / std


@torch.no_grad()
def predict(
    model: Callable[[Tensor], Tensor],
    images: Tensor,
    *,
    size: int | None = None,
    batch_size: int = 200,
) -> Tensor:
    """Return logits of uint8 images, averaged over each image and its mirror image."""
    logits = []
    for batch in images.split(batch_size):
        inputs = normalise(batch)
        if size is not None:
            inputs = F.interpolate(inputs, (size, size), mode="bilinear")
        logits.append((model(inputs) + model(inputs.flip(3))).float() / 2)
    return torch.cat(logits).cpu()


def average_precision(scores: Tensor, labels: Tensor) -> float:
    """Return the mean precision at the rank of each positive; labels of -1 are left out."""
    counted = labels >= 0
    order = scores[counted].argsort(descending=True, stable=True)
    positive = labels[counted][order].double()
    rank = torch.arange(1, len(positive) + 1)
    precision = positive.cumsum(0) / rank
    return float((precision * positive).sum() / positive.sum())


def average_precisions(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the average precision of each class."""
    return {
        name: average_precision(logits[:, index], labels[:, index])
        for index, name in enumerate(CLASSES)
    }


def mean_average_precision(logits: Tensor, labels: Tensor) -> float:
    """Return the average precision, averaged over classes."""
    precisions = average_precisions(logits, labels)
    return sum(precisions.values()) / len(precisions)


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None, f"{member.name} is not a file"
    return file.read()


def _decode(file: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))
