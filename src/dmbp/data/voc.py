"""PASCAL VOC in its official layout, the second dataset of the paper.

A photo is `JPEGImages/NAME.jpg`, its objects are in `Annotations/NAME.xml`, and the validation set
is listed in `ImageSets/Main/val.txt`. By default a class counts for a photo whatever its difficult
flag, as in TorchRay.
"""

from pathlib import Path
from xml.etree import ElementTree

from dmbp.data.sample import Sample, VocImage, VocObject
from dmbp.errors import PhotoError


def read_voc_samples(root: Path, *, difficult: bool = True) -> list[Sample]:
    """Return the photos of a VOC folder with the classes on them.

    If the folder has a list of its validation set, only the photos on that list are returned. If
    `difficult` is false, classes that only have difficult objects on a photo do not count, and
    photos without any other class are left out.
    """
    images = _validation_images(root, read_voc(root))
    samples = [
        Sample(
            image.path.stem,
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
        root: The folder that has `Annotations` and `JPEGImages`, such as `VOCdevkit/VOC2012`.

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
    try:
        names = set(path.read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError) as error:
        raise PhotoError(f"cannot read {path}: {error}") from error
    listed = [image for image in images if image.path.stem in names]
    if not listed:
        raise PhotoError(f"none of the photos that {path} lists is annotated in {root}")
    return listed


def _read_annotation(annotation: Path, photos: Path) -> VocImage:
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
