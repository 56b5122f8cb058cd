"""The two datasets of the paper, in the layouts in which they are distributed.

**PASCAL VOC.** A photo is `JPEGImages/NAME.jpg`, its objects are in `Annotations/NAME.xml`, and the
validation set is listed in `ImageSets/Main/val.txt`. By default a class counts for a photo whatever
its difficult flag, as in TorchRay.

**ImageNet's validation set (ILSVRC2012), by synset:** a folder for each of the thousand synsets,
`n01440764/ILSVRC2012_val_….JPEG`. Classes are numbered by the sorted synsets, as ImageNet models
number them.

**ImageNet's validation set, flat:** all photos are in one folder, beside a list of their classes,
which is one of

    val.txt                                  ILSVRC2012_val_00000001.JPEG 65
    ILSVRC2012_validation_ground_truth.txt   490                    in the order of the photos

The second list comes from the official development kit. It numbers classes from one, in an order
that `synsets.txt` in the same folder must give, with one synset per line.
"""

import random
import re
from pathlib import Path
from xml.etree import ElementTree

from dmbp.data.photo import photo_names
from dmbp.data.sample import Label, Sample, VocImage, VocObject, samples_in, subfolders
from dmbp.errors import PhotoError
from dmbp.files import check_file, printable, read_text

MAX_BYTES = 2**25
"""The largest list or annotation that is read; ImageNet's are below 2 MB."""


def read_voc_samples(root: Path, *, difficult: bool = True) -> list[Sample]:
    """Return the photos of a VOC folder with the classes on them.

    If the folder has a list of its validation set, only the photos on that list are returned. If
    `difficult` is false, classes that only have difficult objects on a photo do not count, and
    photos without any other class are left out.
    """
    images = _validation_images(root, read_voc(root))
    samples = [
        Sample(
            printable(image.path.stem),
            image.path.parent,
            image.path.name,
            tuple(image.classes(difficult=difficult)),
            image,
        )
        for image in images
    ]
    labelled = [sample for sample in samples if sample.labels]
    if not labelled:
        raise PhotoError(f"no photo of {root} has an object that counts")
    return labelled


def read_voc(root: Path) -> list[VocImage]:
    """Return every annotated photo of a VOC folder, sorted by name.

    Args:
        root: The folder with `Annotations` and `JPEGImages`, such as `VOCdevkit/VOC2012`.

    Returns:
        The photos with their annotated objects; no photo is opened.

    Raises:
        PhotoError: If there are no annotations, or one of them cannot be read.
    """
    annotations = sorted((root / "Annotations").glob("*.xml"))
    if not annotations:
        raise PhotoError(f"{root} is not a VOC folder: there are no files in {root}/Annotations")
    return [_read_annotation(path, root / "JPEGImages") for path in annotations]


def _validation_images(root: Path, images: list[VocImage]) -> list[VocImage]:
    path = root / "ImageSets" / "Main" / "val.txt"
    if not path.is_file():
        return images
    names = set(_read_text(path).split())
    listed = [image for image in images if image.path.stem in names]
    if not listed:
        raise PhotoError(f"none of the photos that {path} lists is annotated in {root}")
    return listed


def _read_annotation(annotation: Path, photos: Path) -> VocImage:
    check_file(annotation, what="file", error=PhotoError, most_bytes=MAX_BYTES)
    try:
        tree = ElementTree.parse(annotation).getroot()
        size = (int(_text(tree, "size/width")), int(_text(tree, "size/height")))
        objects = tuple(_parse_object(item) for item in tree.iter("object"))
    except (ElementTree.ParseError, ValueError, OSError) as error:
        raise PhotoError(f"{annotation} is not a VOC annotation: {error}") from error
    return VocImage(photos / f"{annotation.stem}.jpg", size, objects)


def _parse_object(item: ElementTree.Element) -> VocObject:
    left, top, right, bottom = (
        float(_text(item, f"bndbox/{edge}")) for edge in ("xmin", "ymin", "xmax", "ymax")
    )
    difficult = (item.findtext("difficult") or "0").strip() == "1"
    return VocObject(_text(item, "name"), (left, top, right, bottom), difficult)


def _text(item: ElementTree.Element, path: str) -> str:
    text = item.findtext(path)
    if text is None:
        raise ValueError(f"it has no {path}")
    return text.strip()


CLASSES = 1000
SYNSET = re.compile(r"n\d{8}")
GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"


def read_imagenet(root: Path) -> list[Sample]:
    """Return every photo of the validation set with its class."""
    folders = [folder for folder in subfolders(root) if SYNSET.fullmatch(folder.name)]
    if folders:
        return _read_by_synset(root, folders)
    photos = photo_names(root)
    if not photos:
        raise PhotoError(f"{root} has neither folders of synsets (n01440764, …) nor photos")
    if (root / "val.txt").is_file():
        return _read_val_list(root, photos)
    if (root / GROUND_TRUTH).is_file():
        return _read_ground_truth(root, photos)
    raise PhotoError(
        f"{root} has photos but no list of their classes: put val.txt or {GROUND_TRUTH} there"
    )


def read_imagenet_5k(root: Path) -> list[Sample]:
    """Return five photos of each class, drawn at random with a fixed seed."""
    classes: dict[Label, list[Sample]] = {}
    for sample in read_imagenet(root):
        classes.setdefault(sample.labels[0], []).append(sample)
    draw = random.Random(0)
    return [
        sample
        for label in sorted(classes, key=str)
        for sample in draw.sample(classes[label], min(5, len(classes[label])))
    ]


def _read_by_synset(root: Path, folders: list[Path]) -> list[Sample]:
    listed = _read_synsets(root / "synsets.txt") if (root / "synsets.txt").is_file() else None
    names = sorted(listed) if listed is not None else [folder.name for folder in folders]
    if listed is None and len(names) != CLASSES:
        raise PhotoError(
            f"{root} has {len(names)} folders of synsets, not {CLASSES}: put synsets.txt there, "
            f"with all {CLASSES} synsets, one per line"
        )
    number = {name: index for index, name in enumerate(names)}
    for folder in folders:
        if folder.name not in number:
            raise PhotoError(f"{root / 'synsets.txt'} does not have {folder.name}")
    samples = [sample for folder in folders for sample in samples_in(folder, number[folder.name])]
    if not samples:
        raise PhotoError(f"the folders of synsets in {root} have no photos")
    return samples


def _read_val_list(root: Path, photos: list[str]) -> list[Sample]:
    """Read a list of files and classes, numbered from zero in the order of sorted synsets."""
    path = root / "val.txt"
    classes: dict[str, int] = {}
    for number, line in enumerate(_lines(path), 1):
        parts = line.split()
        if (
            len(parts) != 2
            or not parts[1].isdecimal()
            or len(parts[1]) > 4
            or int(parts[1]) >= CLASSES
        ):
            raise PhotoError(f"line {number} of {path} is not a file and a class: {line!r}")
        classes[Path(parts[0]).name] = int(parts[1])
    missing = [photo for photo in photos if photo not in classes]
    if missing:
        raise PhotoError(f"{path} does not have {missing[0]}")
    return [Sample(printable(photo), root, photo, (classes[photo],)) for photo in photos]


def _read_ground_truth(root: Path, photos: list[str]) -> list[Sample]:
    """Read the development kit's list, which numbers classes from one, as synsets.txt does."""
    truth = _lines(root / GROUND_TRUTH)
    if not (root / "synsets.txt").is_file():
        raise PhotoError(
            f"{root / GROUND_TRUTH} does not say in which order it numbers classes: put "
            "synsets.txt there, with all synsets in that order, one per line"
        )
    if len(truth) != len(photos):
        raise PhotoError(
            f"{root / GROUND_TRUTH} has {len(truth)} lines for {len(photos)} photos: it needs one "
            "line for each photo of the whole validation set, in their order"
        )
    order = _read_synsets(root / "synsets.txt")
    number = {name: index for index, name in enumerate(sorted(order))}
    samples: list[Sample] = []
    for photo, line in zip(photos, truth, strict=True):
        if not line.isdecimal() or len(line) > 4 or not 1 <= int(line) <= len(order):
            raise PhotoError(f"{root / GROUND_TRUTH} has {line!r} for {photo}, not a class")
        samples.append(Sample(printable(photo), root, photo, (number[order[int(line) - 1]],)))
    return samples


def _read_synsets(path: Path) -> list[str]:
    """Read the synset at the start of each line."""
    synsets = [line.split()[0] for line in _lines(path)]
    wrong = [name for name in synsets if not SYNSET.fullmatch(name)]
    if wrong or len(synsets) != CLASSES or len(set(synsets)) != CLASSES:
        count = f"it has {len(set(synsets))} synsets"
        problem = f"{wrong[0]!r} is not a synset" if wrong else count
        raise PhotoError(f"{path} is not a list of ImageNet's {CLASSES} synsets: {problem}")
    return synsets


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in _read_text(path).splitlines() if line.strip()]


def _read_text(path: Path) -> str:
    return read_text(path, what="file", error=PhotoError, most_bytes=MAX_BYTES)
