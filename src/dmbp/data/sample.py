"""One photograph of a dataset, and what is known to be on it."""

from dataclasses import dataclass
from pathlib import Path

from dmbp.data.voc import VocImage

Label = int | str
"""A class: its number in the model's outputs, or its name."""


@dataclass(frozen=True)
class Sample:
    """A photo by the name its dataset has for it, with the classes on it, each once.

    `annotation` holds the objects and their boxes, where someone drew them.
    """

    name: str
    path: Path
    labels: tuple[Label, ...]
    annotation: VocImage | None = None
