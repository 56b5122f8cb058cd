"""One photograph of a dataset, and what is known to be on it.

A CSV of photos: a column `file`, relative to the CSV, and a column `label`.

A label is a class's number or name; a photo with several has several lines, or labels separated by
semicolons.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from dmbp.data.photo import photo_names
from dmbp.data.voc import VocImage
from dmbp.errors import PhotoError

Label = int | str
"""A class: its number in the model's outputs, or its name."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A photo by the name its dataset has for it, with the classes on it, each once.

    `file` is its path from `folder`, an object that samples share: whole paths of fifty thousand
    photos would be most of what a driver holds. `annotation` has the objects and their boxes, where
    someone drew them.
    """

    name: str
    folder: Path
    file: str
    labels: tuple[Label, ...]
    annotation: VocImage | None = None

    @property
    def path(self) -> Path:
        """Where the photo lies."""
        return self.folder / self.file


def samples_in(folder: Path, label: Label) -> list[Sample]:
    """The photos in the folder of a class."""
    labels = (label,)
    return [Sample(f"{folder.name}/{file}", folder, file, labels) for file in photo_names(folder)]


def read_manifest(path: Path) -> list[Sample]:
    """The photos of a manifest, in its order."""
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
                labels.setdefault(row["file"], []).extend(_label(text) for text in texts)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PhotoError(f"cannot read {path}: {error}") from error
    if not labels:
        raise PhotoError(f"{path} lists no photos")
    folder = path.parent
    return [
        Sample(file, folder, file, tuple(dict.fromkeys(found))) for file, found in labels.items()
    ]


def _label(text: str) -> Label:
    return int(text) if text.removeprefix("-").isdecimal() else text
