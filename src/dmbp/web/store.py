"""What the server keeps in memory: what the model saw of photos, and answers; never the photos.

Each store has a limit in bytes, and what was used longest ago leaves first.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dmbp.web.decoding import Pixels

V = TypeVar("V")


@dataclass(frozen=True)
class SeenPhoto:
    """What the model saw of a photo.

    Attributes:
        digest: The SHA-256 of the photo's bytes, in hexadecimal.
        name: What the photo is called.
        size: The photo's own width and height.
        view: The part of it that the model sees, at the size it sees it.
    """

    digest: str
    name: str
    size: tuple[int, int]
    view: Pixels


@dataclass(frozen=True)
class OpenedPhoto:
    """A photo that was opened, and what the page is told about it."""

    photo: SeenPhoto
    record: dict[str, Any]


class ByteStore(Generic[V]):
    """Values by key, of `most_bytes` together."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self._values: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> V | None:
        """Return a value, which then counts as used, or None."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: Hashable, value: V, size: int) -> None:
        """Keep a value of so many bytes; one that is larger than the store is not kept."""
        if size > self.most_bytes:
            return
        _, before = self._values.pop(key, (None, 0))
        self._values[key] = value, size
        self.bytes += size - before
        while self.bytes > self.most_bytes:
            _, (_, freed) = self._values.popitem(last=False)
            self.bytes -= freed
