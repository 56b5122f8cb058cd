"""Reads the names of classes, from a text file or from a list in another file, and checks them."""

from collections.abc import Sequence
from pathlib import Path

from dmbp.errors import WeightsError
from dmbp.files import printable, read_text, shown

MAX_BYTES = 2**24
"""The largest file of class names; ImageNet's 21 841 names are 0.5 MB."""

LONGEST = 1000
"""The most characters of a class's name; drawing longer ones takes minutes."""


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
        if len(name) > LONGEST:
            raise WeightsError(
                f"{item} {number} of {source} has {len(name):,} characters, which is no class's "
                "name"
            )
    return tuple(printable(name.strip()) for name in names)
