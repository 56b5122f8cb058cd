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
from dmbp.files import check_file, is_folder, printable, reason, shown

MAX_BYTES = 2**27
"""The largest manifest: two million lines, which take about a gigabyte of memory."""

MAX_DIGITS = 18
"""The most digits of a class's number; it has to fit into 64 bits."""

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

    def boxes(self, name: str, *, size: tuple[int, int]) -> list[Box]:
        """Return the boxes of a class after the photo is squeezed to a size (height, width)."""
        across, down = size[1] / self.size[0], size[0] / self.size[1]
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
        masks: A picture for each label that is not black where the class is, or None, as paths
            relative to `folder`; empty if the dataset has none.
    """

    name: str
    folder: Path
    file: str
    labels: tuple[Label, ...]
    annotation: VocImage | None = None
    masks: tuple[str | None, ...] = ()

    @property
    def path(self) -> Path:
        """The photo's path."""
        return self.folder / self.file

    def mask_paths(self) -> list[Path | None]:
        """Return the path of each label's mask, or None."""
        masks = self.masks or (None,) * len(self.labels)
        return [None if mask is None else self.folder / mask for mask in masks]


def samples_in(folder: Path, label: Label) -> list[Sample]:
    """Return the photos in a folder, all with the same label."""
    labels, files = (label,), photo_names(folder)
    return [Sample(printable(f"{folder.name}/{file}"), folder, file, labels) for file in files]


def subfolders(root: Path) -> list[Path]:
    """Return the folders in a folder, sorted.

    Raises:
        PhotoError: If `root` is not a folder that can be read.
    """
    if not is_folder(root):
        is_list = root.suffix.lower() == ".csv"
        hint = '; for a list of photos, dataset = "manifest"' if is_list else ""
        raise PhotoError(f"{shown(root)} is not a folder{hint}")
    try:
        return sorted(path for path in root.iterdir() if is_folder(path))
    except OSError as error:
        raise PhotoError(f"the folder {shown(root)} cannot be read: {reason(error)}") from error


def read_folder(root: Path) -> list[Sample]:
    """Return the photos in the subfolders of `root`, labelled with the subfolders' names."""
    classes = [(folder, printable(folder.name)) for folder in subfolders(root)]
    samples = [sample for folder, name in classes for sample in samples_in(folder, name)]
    if not samples:
        raise PhotoError(
            f"{root} has no folders with photos, one folder for each class; photos that a CSV file "
            'lists are dataset = "manifest", with the path of the file'
        )
    return samples


def read_manifest(path: Path) -> list[Sample]:
    """Return the photos that a CSV manifest lists, in its order."""
    check_file(path, what="manifest", error=PhotoError, most_bytes=MAX_BYTES)
    labels: dict[str, list[Label]] = {}
    masks: dict[tuple[str, Label], str] = {}
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
                if "\0" in row["file"] + row["label"]:
                    raise PhotoError(f"line {reader.line_num} of {path} contains a NUL character")
                where = f"line {reader.line_num} of {path}"
                parsed = [_parse_label(text, where) for text in texts]
                labels.setdefault(row["file"], []).extend(parsed)
                if mask := row.get("mask"):
                    if "\0" in mask:
                        raise PhotoError(f"{where} contains a NUL character")
                    masks.update({(row["file"], label): mask for label in parsed})
    except (OSError, UnicodeDecodeError) as error:
        raise PhotoError(f"{shown(path)} cannot be read: {reason(error)}") from error
    except csv.Error as error:
        raise PhotoError(f"{shown(path)} is not a CSV file: {error}") from error
    if not labels:
        raise PhotoError(f"{path} lists no photos")
    folder, samples = path.parent, list[Sample]()
    for file, repeated in labels.items():
        own = tuple(dict.fromkeys(repeated))
        own_masks = tuple(masks.get((file, label)) for label in own) if masks else ()
        samples.append(Sample(file, folder, file, own, masks=own_masks))
    return samples


def _parse_label(text: str, where: str) -> Label:
    if not text.removeprefix("-").isdecimal():
        return text
    if len(text) > MAX_DIGITS:
        raise PhotoError(f"{where} has a number of {len(text):,} digits, which is no class")
    return int(text)
