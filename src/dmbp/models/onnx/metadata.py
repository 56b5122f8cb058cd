"""What exporters note in an ONNX file about its classes and its images.

    character    PaddleOCR: a class on each line; recognisers add "blank" before and a space after
    names        Ultralytics: {0: 'person', 1: 'bicycle', …}
    imgsz        Ultralytics: [height, width]
    task         Ultralytics: "detect", "segment", "pose", …; photos are pixels from 0 to 1, padded
                 to the input's shape but for "classify"

Nobody checks these notes, so names are used only if their number agrees with the model's outputs,
and a size only where the file itself leaves it open.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from dmbp.errors import WeightsError
from dmbp.models.classifier import Classifier, Fit
from dmbp.models.text_files import check_class_names

MAX_LETTERS = 2**20
"""The longest note that is read; the longest list of characters has 60 000."""

BLANK, SPACE = "blank", "␣"
"""What recognisers add to their characters: no character, and a space that can be seen."""

ULTRALYTICS = "Ultralytics"

BESIDE_CLASSES = (0, 4, 5)
"""How many numbers besides its classes' scores a candidate of a detector has: none if the outputs
are classes, or a box, and the score of any object."""

SEGMENT, MASKS = "segment", 32
"""The task of detectors that also give so many numbers for each candidate's mask."""


@dataclass(frozen=True)
class FileNotes:
    """The notes of a file: class names and characters, the size of its images, and its task."""

    names: tuple[str, ...] = ()
    characters: tuple[str, ...] = ()
    size: tuple[int, int] | None = None
    task: str | None = None

    def classes(self, outputs: Sequence[int]) -> tuple[str, ...] | None:
        """Return the names of the classes, if they fit the shape of an image's outputs."""
        read = (BLANK, *self.characters, SPACE)
        masks = (4 + MASKS, 5 + MASKS) if self.task == SEGMENT else ()
        for count in outputs[::-1]:
            if self.characters and count in (len(read), len(read) - 1):
                return read[:count]
            for names in (self.names, self.characters):
                if names and count - len(names) in (*BESIDE_CLASSES, *masks):
                    return names
        return None


def read_notes(model: Any) -> FileNotes:
    """Return the notes of an ONNX model; those that cannot be read are left out."""
    notes = {note.key: note.value for note in model.metadata_props}
    found = {key: value for key, value in notes.items() if len(value) <= MAX_LETTERS}
    names = _literal(found.get("names", ""))
    if isinstance(names, dict):
        table: dict[Any, Any] = names
        names = [table[k] for k in range(len(table)) if k in table]
    characters = found.get("character", "")
    return FileNotes(
        _checked(names if isinstance(names, list | tuple) else ()),
        _checked([k if k.strip() else SPACE for k in characters.split("\n")] if characters else ()),
        _size(_literal(found.get("imgsz", ""))),
        found.get("task") if found.get("author") == ULTRALYTICS else None,
    )


def with_notes(classifier: Classifier, notes: FileNotes, outputs: Sequence[int]) -> Classifier:
    """Return a classifier with what a file notes about it.

    Args:
        classifier: The file's.
        notes: The file's notes.
        outputs: The shape of an image's outputs.
    """
    classes, photos = notes.classes(outputs), classifier.preprocessing
    found = ["classes"] if classes is not None else []
    if notes.task is not None and len(photos.mean) == 3:
        found += ["mean", "std", "fit"]
        fit: Fit = "crop" if notes.task == "classify" else "letterbox"
        photos = replace(photos, resize=photos.crop, fit=fit, mean=(0,) * 3, std=(1,) * 3)
    return replace(
        classifier,
        classes=classes,
        preprocessing=photos,
        origins={**classifier.origins, **dict.fromkeys(found, "the file")},
    )


def _literal(text: str) -> Any:
    """Return a value that is written as Python writes it, or None; no code is run."""
    with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return ast.literal_eval(text)
    return None


def _checked(names: Sequence[Any]) -> tuple[str, ...]:
    with suppress(WeightsError):
        return check_class_names([str(name) for name in names], "the file")
    return ()


def _size(value: Any) -> tuple[int, int] | None:
    is_pair = isinstance(value, list) and len(value) == 2
    if is_pair and all(type(side) is int and side > 0 for side in value):
        return value[0], value[1]
    return None
