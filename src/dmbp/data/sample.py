"""A labelled photo of a dataset, and readers for two simple layouts of datasets.

A folder dataset has one folder of photos for each class. A manifest is a CSV file with a column
`file`, relative to the CSV, and a column `label`, a class's number or name; a photo with several
classes has several lines, or labels separated by semicolons.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from dmbp.data.photo import photo_names
from dmbp.errors import PhotoError

Label = int | str
"""A class: its number in the model's outputs, or its name."""

Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""


@dataclass(frozen=True)
class VocObject:
    """An annotated object; its box is in pixels of the photo."""

    name: str
    box: Box
    difficult: bool


@dataclass(frozen=True)
class VocImage:
    """A photo, its width and height, and the objects annotated on it."""

    path: Path
    size: tuple[int, int]
    objects: tuple[VocObject, ...]

    def classes(self, *, difficult: bool = True) -> list[str]:
        """Return the names of the classes on the photo, each once, in the order of annotation.

        If `difficult` is false, classes that only have difficult objects are left out.
        """
        names = [item.name for item in self.objects if difficult or not item.difficult]
        return list(dict.fromkeys(names))

    def boxes(self, name: str, *, side: int) -> list[Box]:
        """Return the boxes of a class after the photo is squeezed to `side` × `side` pixels."""
        across, down = (side / length for length in self.size)
        return [
            (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
            for box in (item.box for item in self.objects if item.name == name)
        ]


@dataclass(frozen=True, slots=True)
class Sample:
    """A photo and the classes on it.

    Samples of one folder share its `Path`: the full paths of fifty thousand photos would take most
    of the memory of the process that runs a benchmark.

    Args:
        name: The photo's name within its dataset.
        folder: A folder above the photo.
        file: The photo's path relative to `folder`.
        labels: The classes on the photo, each once.
        annotation: The objects and their boxes, if the dataset has any.
    """

    name: str
    folder: Path
    file: str
    labels: tuple[Label, ...]
    annotation: VocImage | None = None

    @property
    def path(self) -> Path:
        """The photo's path."""
        return self.folder / self.file


def samples_in(folder: Path, label: Label) -> list[Sample]:
    """Return the photos in a folder, all with the same label."""
    labels = (label,)
    return [Sample(f"{folder.name}/{file}", folder, file, labels) for file in photo_names(folder)]


def read_folder(root: Path) -> list[Sample]:
    """Return the photos in the subfolders of `root`, labelled with the subfolders' names."""
    if not root.is_dir():
        raise PhotoError(f"{root} is not a folder")
    classes = sorted(path for path in root.iterdir() if path.is_dir())
    samples = [sample for folder in classes for sample in samples_in(folder, folder.name)]
    if not samples:
        raise PhotoError(f"{root} has no folders with photos, one folder for each class")
    return samples


def read_manifest(path: Path) -> list[Sample]:
    """Return the photos that a CSV manifest lists, in its order."""
    labels: dict[str, list[Label]] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or []
            for column in ("file", "label"):
                if column not in columns:
                    raise PhotoError(
                        f"{path} has no column {column!r}; its first line reads {','.join(columns)}"
                    )
            for row in reader:
                texts = [text.strip() for text in (row["label"] or "").split(";")]
                if not row["file"] or not all(texts):
                    raise PhotoError(f"line {reader.line_num} of {path} lacks a file or a label")
                labels.setdefault(row["file"], []).extend(_parse_label(text) for text in texts)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PhotoError(f"cannot read {path}: {error}") from error
    if not labels:
        raise PhotoError(f"{path} lists no photos")
    folder = path.parent
    return [
        Sample(file, folder, file, tuple(dict.fromkeys(repeated)))
        for file, repeated in labels.items()
    ]


def _parse_label(text: str) -> Label:
    return int(text) if text.removeprefix("-").isdecimal() else text
