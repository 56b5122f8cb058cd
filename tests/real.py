"""The real networks and photographs that benchmarks run on, from a folder beside this one."""

import csv
import tarfile
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from dmbp.data import read_photo
from dmbp.data.paper_datasets import read_voc
from dmbp.data.sample import Box
from dmbp.models import Classifier, Preprocessing, load_model
from dmbp.models.paper_networks import keras_resnet50_classifier
from dmbp.models.voc160 import CLASSES

SIDE = 224


def resnet50(shared: Path) -> Classifier:
    """The real ImageNet ResNet50."""
    return keras_resnet50_classifier(shared / "models" / "resnet50_imagenet.safetensors")


def resnet50_voc(shared: Path) -> Classifier:
    """The real ResNet50 with a 20-way VOC head."""
    return load_model("resnet50-voc", weights=shared / "models")


def vgg16_voc(shared: Path) -> Classifier:
    """The real VGG16 convolutions, a mean over positions, and the 20-way VOC head."""
    return load_model("vgg16-voc", weights=shared / "models")


def photographs(shared: Path, preprocessing: Preprocessing, count: int) -> tuple[Tensor, Tensor]:
    """The first photographs, each squeezed to a square, and their ImageNet classes."""
    with (shared / "data" / "photos" / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))[:count]
    folder = shared / "data" / "photos" / "images"
    inputs = torch.cat([_squeezed(folder / row["file"], preprocessing) for row in rows])
    return inputs, torch.tensor([int(row["imagenet_class"]) for row in rows])


@dataclass(frozen=True)
class Pairs:
    """(image, class) pairs of VOC: an input, the class asked about, the others, its boxes.

    `image` is the number of each pair's image, from 0; the images of voc160 have no boxes.
    """

    inputs: Tensor
    target: Tensor
    image: list[int]
    others: list[list[int]]
    boxes: list[list[Box]] | None = None


def voc_pairs(shared: Path, preprocessing: Preprocessing, images: int) -> Pairs:
    """Every pair of the first VOC images, each squeezed to a square."""
    inputs: list[Tensor] = []
    target: list[int] = []
    image: list[int] = []
    others: list[list[int]] = []
    boxes: list[list[Box]] = []
    for number, voc in enumerate(read_voc(shared / "data" / "VOCdevkit" / "VOC2012")[:images]):
        photo = _squeezed(voc.path, preprocessing)
        present = [CLASSES.index(name) for name in voc.classes()]
        for index in present:
            inputs.append(photo)
            target.append(index)
            image.append(number)
            others.append([other for other in present if other != index])
            boxes.append(voc.boxes(CLASSES[index], size=(SIDE, SIDE)))
    return Pairs(torch.cat(inputs), torch.tensor(target), image, others, boxes)


def voc160(shared: Path) -> Classifier:
    """The built-in model."""
    return load_model("voc160")


def voc160_pairs(shared: Path, preprocessing: Preprocessing, images: int) -> Pairs:
    """Every pair of the first val images of voc160; difficult objects do not count."""
    with (shared / "data" / "voc160_labels.csv").open(newline="") as file:
        labels = {row["id"]: row for row in csv.DictReader(file)}
    found: list[tuple[Tensor, int, int, list[int]]] = []
    with tarfile.open(shared / "data" / "voc160_val.tar") as archive:
        files = (member for member in archive if member.isfile())
        for number, member in enumerate(islice(files, images)):
            with Image.open(archive.extractfile(member)) as image:
                photo = preprocessing.tensor(preprocessing.view(image.convert("RGB")))
            row = labels[Path(member.name).stem]
            present = [index for index, name in enumerate(CLASSES) if row[name] == "1"]
            found += [
                (photo, index, number, [other for other in present if other != index])
                for index in present
            ]
    inputs, target, numbers, others = zip(*found, strict=True)
    return Pairs(torch.cat(inputs), torch.tensor(target), list(numbers), list(others))


def _squeezed(path: Path, preprocessing: Preprocessing) -> Tensor:
    squeezing = replace(preprocessing, crop=SIDE, fit="squeeze")
    return squeezing.tensor(squeezing.view(read_photo(path)))
