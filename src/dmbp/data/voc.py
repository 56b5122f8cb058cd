"""PASCAL VOC in its official layout: images, and the objects annotated on them.

The paper's second dataset. A class counts for an image whatever its difficult flag, as in TorchRay;
`VocImage.classes(difficult=False)` leaves out those with difficult instances only.
"""

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from dmbp.errors import PhotoError

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class VocObject:
    """One annotated object; its box is left, top, right and bottom in pixels of the photo."""

    name: str
    box: Box
    difficult: bool


@dataclass(frozen=True)
class VocImage:
    """A photo, its width and height, and what is on it."""

    path: Path
    size: tuple[int, int]
    objects: tuple[VocObject, ...]

    def classes(self, *, difficult: bool = True) -> list[str]:
        """The names on the photo, each once, in the order of annotation."""
        names = [item.name for item in self.objects if difficult or not item.difficult]
        return list(dict.fromkeys(names))

    def boxes(self, name: str, *, side: int) -> list[Box]:
        """The boxes of a class once the photo is squeezed to `side` × `side` pixels."""
        across, down = (side / length for length in self.size)
        return [
            (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
            for box in (item.box for item in self.objects if item.name == name)
        ]


def read_voc(root: Path) -> list[VocImage]:
    """Every annotated photo of a VOC2012 folder, in the order of their names."""
    annotations = sorted((root / "Annotations").glob("*.xml"))
    if not annotations:
        raise PhotoError(f"{root} is not a VOC folder: there are no files in {root}/Annotations")
    return [_read(path, root / "JPEGImages") for path in annotations]


def _read(annotation: Path, photos: Path) -> VocImage:
    try:
        tree = ElementTree.parse(annotation).getroot()
        size = (int(_text(tree, "size/width")), int(_text(tree, "size/height")))
        objects = tuple(_object(item) for item in tree.iter("object"))
    except (ElementTree.ParseError, ValueError, OSError) as error:
        raise PhotoError(f"{annotation} is not a VOC annotation: {error}") from error
    return VocImage(photos / f"{annotation.stem}.jpg", size, objects)


def _object(item: ElementTree.Element) -> VocObject:
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
