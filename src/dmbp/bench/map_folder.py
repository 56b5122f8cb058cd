"""Maps kept beside a store, so that a metric that is added to a plan computes no map again.

Each map is one file of the folder, named by a digest of everything that determines it: the photo,
the class, the weights, the preprocessing, the method and its settings. A map is the sum over the
channels of an attribution, which is all that metrics read, in the precision in which it was
computed, so that a score is the same to the last bit whether its map was kept or computed. The
bytes of its numbers are sorted by significance and compressed with zlib. At 224 × 224 pixels in
float32 (196 KiB), a file takes 97 to 171 KiB: smooth maps of regions less, noisy gradients more.

A file is written under another name first and then renamed, so that a run that is killed leaves
whole files only. A file that is damaged later is computed again.
"""

import hashlib
import json
import os
import warnings
import zlib
from contextlib import suppress
from pathlib import Path

import numpy
import torch
from torch import Tensor

from dmbp.bench.row import Cell
from dmbp.files import reason, shown

ENDING = ".maps"
"""What the folder's name adds to that of the store."""

LEVEL = 1
"""zlib's level: higher ones take five times as long and save two per cent."""


def folder_beside(store: Path) -> Path:
    """Return the folder of maps that belongs to a store."""
    return store.with_name(store.name + ENDING)


def folder_size(folder: Path) -> tuple[int, int]:
    """Return how many maps a folder has, and their bytes."""
    sizes = [path.stat().st_size for path in folder.glob("??/*.map")]
    return len(sizes), sum(sizes)


class MapFolder:
    """A folder of maps; several processes may use it at once.

    Args:
        path: The folder, which is created when the first map is written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, cell: Cell) -> Tensor | None:
        """Return the map of a cell on the CPU, or None if there is none that can be used."""
        try:
            content = self._file(cell).read_bytes()
        except OSError:
            return None
        try:
            return _decode(content)
        except (ValueError, KeyError, TypeError, RuntimeError, zlib.error):
            return None

    def put(self, cell: Cell, attribution: Tensor) -> None:
        """Keep a cell's map; if that is not possible, warn, because the score is worth more."""
        file = self._file(cell)
        part = file.with_suffix(f".{os.getpid()}.part")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(_encode(attribution))
            part.replace(file)
        except OSError as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            warnings.warn(
                f"maps are not kept: {shown(self._path)} cannot be written: {reason(error)}",
                stacklevel=2,
            )

    def _file(self, cell: Cell) -> Path:
        key = map_key(cell)
        return self._path / key[:2] / f"{key}.map"


def map_key(cell: Cell) -> str:
    """Return a digest of what determines a cell's map."""
    parts = [cell.photo, cell.target, cell.weights, cell.method, dict(cell.settings)]
    seen = [cell.scoring[name] for name in ("activation", "seen")]
    text = json.dumps([1, *parts, *seen], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


DTYPES = {str(dtype): dtype for dtype in (torch.float16, torch.float32, torch.float64)}


def _encode(attribution: Tensor) -> bytes:
    """Return a header, a line of JSON, and the compressed numbers."""
    values = attribution.detach().cpu().contiguous()
    if values.dtype == torch.bfloat16:
        values = values.float()
    raw = values.numpy().reshape(-1).view(numpy.uint8).reshape(-1, values.element_size())
    body = raw.T.tobytes()
    header = {"dtype": str(values.dtype), "shape": list(values.shape), "crc": zlib.crc32(body)}
    return json.dumps(header).encode() + b"\n" + zlib.compress(body, LEVEL)


def _decode(content: bytes) -> Tensor:
    """Return the map in a file's content.

    Raises:
        ValueError: Or another of the errors that `get` expects, if the content is damaged.
    """
    line, _, compressed = content.partition(b"\n")
    header = json.loads(line)
    dtype, shape = DTYPES[header["dtype"]], [int(side) for side in header["shape"]]
    body = zlib.decompress(compressed)
    if zlib.crc32(body) != header["crc"]:
        raise ValueError("the numbers are not those that were written")
    planes = numpy.frombuffer(body, numpy.uint8).reshape(dtype.itemsize, -1)
    numbers = torch.from_numpy(numpy.ascontiguousarray(planes.T)).view(dtype)
    return numbers.reshape(shape).clone()
