"""Reads JSON files of a bounded size that lie beside a model."""

import json
from pathlib import Path
from typing import Any, cast

from dmbp.errors import ModelError, first_line
from dmbp.files import read_text, shown

MAX_BYTES = 2**24
"""The largest TOML or JSON file beside a model; one with the names of 21 841 classes is 2 MB."""


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
