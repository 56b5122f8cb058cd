"""Checks files before they are read, says what is wrong with them, and writes files all or none.

Only regular files of a bounded size are read: reading a pipe waits forever, and a device such as
`/dev/zero` never ends.

    >>> check_file(Path("/dev/zero"), what="photo", error=DMBPError)
    Traceback (most recent call last):
    ...
    dmbp.errors.DMBPError: /dev/zero cannot be read: it is a device, not a photo
"""

import errno
import os
import re
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from dmbp.errors import DMBPError, OutputError

LONGEST_SHOWN = 120
"""Longer paths are shortened in messages."""

LONGEST_NAME = 255
"""The most bytes of a file's or folder's name on all usual file systems."""

NAME_TOO_LONG = f"its name is too long, file systems allow {LONGEST_NAME} bytes"

CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")

REASONS: Mapping[int | None, str] = {
    errno.ENAMETOOLONG: NAME_TOO_LONG,
    errno.ELOOP: "it is a symbolic link that leads back to itself",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENOENT: "there is no such file or folder",
    errno.ENOTDIR: "a part of its path is a file, not a folder",
}
"""What an error of the operating system means for a file, by its number."""

KINDS: Mapping[str, Callable[[int], bool]] = {
    "a folder": stat.S_ISDIR,
    "a pipe": stat.S_ISFIFO,
    "a socket": stat.S_ISSOCK,
}
"""What is not a regular file; anything else is a device."""


def check_file(
    path: Path,
    *,
    what: str,
    error: type[DMBPError],
    most_bytes: int | None = None,
    may_be_empty: bool = False,
) -> None:
    """Check that a path is a regular file that is neither empty nor too large; it is not opened.

    Args:
        path: The path that a user named.
        what: What the file should be, such as "photo".
        error: The exception to raise.
        most_bytes: The largest size that is read, if there is one.
        may_be_empty: Whether a file without content is accepted. Files of the system such as
            `/proc/kmsg`, reading which may wait forever, have no size, either.

    Raises:
        DMBPError: An `error`, if there is no such file, or it should not be read.
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as problem:
        if getattr(problem, "errno", None) in (errno.ENOENT, errno.ENOTDIR):
            raise error(f"there is no {what} {shown(path)}") from problem
        raise error(f"{shown(path)} cannot be read: {reason(problem)}") from problem
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for name, is_kind in KINDS.items() if is_kind(status.st_mode)), None)
        found = kind or "a device"
        raise error(f"{shown(path)} cannot be read: it is {found}, not a {what}")
    if not os.access(path, os.R_OK):
        raise error(f"{shown(path)} cannot be read: {REASONS[errno.EACCES]}")
    if status.st_size == 0 and not may_be_empty:
        raise error(f"{shown(path)} cannot be read: it is empty")
    if most_bytes is not None and status.st_size > most_bytes:
        raise error(
            f"{shown(path)} cannot be read: it has {status.st_size:,} bytes, more than the "
            f"{most_bytes:,} that a {what} may have"
        )


def read_text(path: Path, *, what: str, error: type[DMBPError], most_bytes: int) -> str:
    """Return the text of a UTF-8 file, without a byte order mark, after `check_file`.

    Raises:
        DMBPError: An `error`, if the file should not or cannot be read.
    """
    check_file(path, what=what, error=error, most_bytes=most_bytes)
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes)
        return content.decode("utf-8-sig")
    except (OSError, ValueError) as problem:
        raise error(f"{shown(path)} cannot be read: {reason(problem)}") from problem


def is_missing(path: Path) -> bool:
    """Return whether there is nothing at a path; a path that cannot be looked at is not missing."""
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
    return False


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder; a path that cannot exist is none."""
    return os.path.isdir(path)


def reason(problem: OSError | ValueError) -> str:
    """Return why a file cannot be used, as the end of a sentence."""
    if isinstance(problem, OSError):
        text = problem.strerror or str(problem) or type(problem).__name__
        return REASONS.get(problem.errno, text)
    if isinstance(problem, UnicodeDecodeError):
        return f"it is not UTF-8 text (byte {problem.start})"
    if "null" in str(problem):  # Python's word for NUL
        return "its name contains a NUL character"
    return str(problem)


def shown(path: Path | str) -> str:
    """Return a path as messages show it: printable, and shortened in the middle if it is long."""
    text = printable(str(path))
    if len(text) <= LONGEST_SHOWN:
        return text
    half = LONGEST_SHOWN // 2
    return f"{text[:half]}…{text[-half:]}"


def printable(name: str) -> str:
    """Return a name with bytes that are not UTF-8, and control characters, as escapes."""
    escaped = name.encode(errors="backslashreplace").decode()
    return CONTROL_CHARACTERS.sub(lambda found: repr(found[0])[1:-1], escaped)


def write_all_or_none(contents: Mapping[Path, bytes]) -> None:
    """Write files under temporary names, and rename them once all are complete.

    Raises:
        OutputError: If a file cannot be written.
    """
    for path in contents:
        if is_folder(path):
            raise OutputError(f"cannot write {shown(path)}: a folder has that name")
        if len(os.fsencode(path.name)) > LONGEST_NAME:
            raise OutputError(f"cannot write {shown(path)}: {NAME_TOO_LONG}")
    parts = {path: _temporary_name(path) for path in contents}
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
        raise OutputError(f"cannot write to {shown(where)}: {reason(error)}") from error


def _temporary_name(path: Path) -> Path:
    """Return a hidden file beside the path; it differs from those of other paths."""
    name = f".{path.name}.part"
    if len(os.fsencode(name)) > LONGEST_NAME:
        name = f".{sha256(os.fsencode(path.name)).hexdigest()}.part"
    return path.with_name(name)
