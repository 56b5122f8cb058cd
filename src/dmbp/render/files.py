"""Results reach the disk whole or not at all."""

import os
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path

from matplotlib.figure import Figure

from dmbp.errors import OutputError

FORMATS = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
DOTS_PER_INCH = 110


def figure_bytes(figure: Figure, suffix: str) -> bytes:
    """A figure as a file's content."""
    if suffix not in FORMATS:
        raise OutputError(f"pictures are written as {', '.join(FORMATS)}, not {suffix!r}")
    buffer = BytesIO()
    figure.savefig(buffer, format=FORMATS[suffix], dpi=DOTS_PER_INCH, facecolor="white")
    return buffer.getvalue()


def write_whole(contents: Mapping[Path, bytes]) -> None:
    """Write several files so that either all are there in the end or none is."""
    for path in contents:
        if path.is_dir():
            raise OutputError(f"cannot write {path}: a folder has that name")
    parts = {path: path.with_name(f".{path.name}.part") for path in contents}
    try:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            parts[path].write_bytes(content)
        for path, part in parts.items():
            os.replace(part, path)
    except OSError as error:
        for part in parts.values():
            with suppress(OSError):
                part.unlink()
        where = next(iter(contents)).parent
        raise OutputError(f"cannot write to {where}: {error.strerror or error}") from error
