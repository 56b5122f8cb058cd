"""One photograph of a dataset, and what is known to be on it."""

from dataclasses import dataclass
from pathlib import Path

from dmbp.data.photo import photo_names
from dmbp.data.voc import VocImage

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
