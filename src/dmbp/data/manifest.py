"""A CSV of photos: a column `file`, relative to the CSV, and a column `label`.

A label is a class's number or name; a photo with several has several lines, or labels separated by
semicolons.
"""

import csv
from pathlib import Path

from dmbp.data.sample import Label, Sample
from dmbp.errors import PhotoError


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
