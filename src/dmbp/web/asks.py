"""What a request asks: one line of JSON, checked value by value, and perhaps a photo after it.

    {"kind": "explain", "photo": "<sha256>", "target": "cat", "rather_than": ["dog"]}

Photos are named by their digest. If the server does not know it (another process has received the
photo, or it was forgotten), the same ask is sent again with the photo's bytes after the line.
"""

import binascii
import json
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dmbp.errors import InputError
from dmbp.files import printable

KINDS = ("open", "explain", "region", "method", "sanity", "file")
FILES = ("png", "svg", "json", "npy", "html")

LONGEST_LINE = 2**21
"""The most bytes of the line: a painted region has a bit for each pixel of the model's input."""

LONGEST_TEXT = 200
MOST_OTHERS = 8
DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Ask:
    """One ask.

    Attributes:
        kind: One of `KINDS`.
        photo: The photo's digest; None if the photo itself comes with the ask.
        name: What the photo is called, for words and names of files.
        target: What is explained, as `dmbp explain --target` takes it; None is the default.
        rather_than: The classes it is compared with.
        method: The name of an attribution method, for the kind "method".
        region: A bit for each pixel of the view, row by row, for the kind "region".
        file: One of `FILES`, for the kind "file".
    """

    kind: str
    photo: str | None = None
    name: str = "photo"
    target: str | None = None
    rather_than: tuple[str, ...] = ()
    method: str | None = None
    region: bytes | None = None
    file: str | None = None

    @property
    def question(self) -> tuple[Any, ...]:
        """The photo and the target."""
        return self.photo, self.target, self.rather_than

    def about(self, digest: str) -> "Ask":
        """Return the same ask about a photo whose digest is known."""
        return replace(self, photo=digest)


def parse_ask(line: bytes) -> Ask:
    """Return the ask that a line of JSON describes.

    Raises:
        InputError: If it is not of this form.
    """
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError("the request does not begin with a line of JSON") from error
    if not isinstance(values, dict):
        raise InputError("the request does not begin with a JSON object")
    given: dict[str, Any] = values
    for name in given:
        if name not in _PARSERS:
            raise InputError(f"there is no field {printable(name)[:40]!r} in a request")
    found = {
        name: _PARSERS[name](name, value) for name, value in given.items() if value is not None
    }
    if "kind" not in found:
        raise InputError("the request does not say what kind it is")
    ask = Ask(**found)
    for kind in ("method", "region", "file"):
        if ask.kind == kind and getattr(ask, kind) is None:
            raise InputError(f"a request of the kind {kind!r} needs a field {kind!r}")
    return ask


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise InputError(f"{name!r} must be a text of at most {LONGEST_TEXT} letters")
    return printable(value)


def _one_of(*names: str) -> Callable[[str, Any], str]:
    def parse(name: str, value: Any) -> str:
        if value not in names:
            raise InputError(f"{name!r} must be one of {', '.join(names)}")
        return value

    return parse


def _digest(name: str, value: Any) -> str:
    if not isinstance(value, str) or not DIGEST.fullmatch(value):
        raise InputError(f"{name!r} must be a SHA-256 in hexadecimal")
    return value


def _file_name(name: str, value: Any) -> str:
    """Return the last part of a file's name, which may come from any system."""
    _text(name, value)
    return printable(re.split(r"[/\\]", value)[-1].strip()) or "photo"


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MOST_OTHERS:
        raise InputError(f"{name!r} must be a list of at most {MOST_OTHERS} texts")
    return tuple(_text(name, item) for item in value)


def _bits(name: str, value: Any) -> bytes:
    try:
        return b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise InputError(f"{name!r} must be base64") from error


_PARSERS: Mapping[str, Callable[[str, Any], Any]] = {
    "kind": _one_of(*KINDS),
    "photo": _digest,
    "name": _file_name,
    "target": _text,
    "rather_than": _texts,
    "method": _text,
    "region": _bits,
    "file": _one_of(*FILES),
}
