"""Reads the small text files that come with a model: settings in JSON, and names of classes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from dmbp.errors import ModelError, WeightsError, first_line
from dmbp.files import printable, read_text, shown

MAX_BYTES = 2**24
"""The largest text file beside a model; a JSON file with the names of 21 841 classes is 2 MB."""

LONGEST_NAME = 1000
"""The most characters of a class's name; drawing longer ones takes minutes."""


def read_json(path: Path) -> dict[str, Any]:
    """Return the table in a JSON file.

    Raises:
        ModelError: If the file cannot be read, is too large or has no table.
    """
    text = read_text(path, what="JSON file", error=ModelError, most_bytes=MAX_BYTES)
    try:
        table = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise ModelError(f"{shown(path)} is not JSON: {first_line(error)}") from error
    if not isinstance(table, dict):
        raise ModelError(f"{shown(path)} is not a JSON file with settings: it has no names")
    return cast("dict[str, Any]", table)


def read_classes(path: Path) -> tuple[str, ...]:
    """Read class names from a text file with one per line.

    Raises:
        WeightsError: If the file cannot be read, or a name is too long.
    """
    text = read_text(path, what="file of classes", error=WeightsError, most_bytes=MAX_BYTES)
    return check_class_names(text.rstrip().splitlines(), shown(path), item="line")


def check_class_names(names: Sequence[str], source: str, *, item: str = "item") -> tuple[str, ...]:
    """Return names as they are shown: stripped, with control characters as escapes.

    Raises:
        WeightsError: If a name is too long; the message calls it the `item` of `source`.
    """
    for number, name in enumerate(names, 1):
        if len(name) > LONGEST_NAME:
            raise WeightsError(
                f"{item} {number} of {source} has {len(name):,} characters, which is no class's "
                "name"
            )
    return tuple(printable(name.strip()) for name in names)
