"""Keeps captured graphs in files, because `torch.export` takes seconds and its import another one.

    >>> from dmbp.linear.capture.export import capture
    >>> captured = recall(model, images)                     # None the first time
    >>> keep(captured or capture(model, images), model, images)

A graph is found by what its model computes (`model/architecture.py`), the form of the inputs, and
the versions of torch and of this package. It holds no weights. Whoever takes a graph from here
checks it against the model, and tells `forget` if it does not fit.

The folder is `DMBP_CACHE`, by default dmbp's in the user's cache folder; `DMBP_CACHE=off` keeps
nothing. Files are written under a temporary name and renamed, so that a reader finds a whole file
or none, whoever else writes; the least recently used are deleted beyond `MOST_FILES` and
`MOST_BYTES`. A cache that cannot be read or written is as good as none.

A module may bring its captured graph along: the path of a file is its class's `captured_graph`.
"""

import contextlib
import os
import sys
import tempfile
import time
import warnings
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor, nn

from dmbp.files import shown
from dmbp.linear.capture.export import CapturedGraph
from dmbp.linear.capture.graph_file import NotPackable, NotReadable, pack, unpack
from dmbp.linear.model.architecture import Indescribable, described
from dmbp.linear.model.wrappers import Model

VARIABLE = "DMBP_CACHE"

OFF = ("off", "0", "no", "none", "false")

SUFFIX = ".graph"

MOST_FILES = 200
MOST_BYTES = 2**26
MOST_BYTES_OF_A_FILE = 2**23

ABANDONED_AFTER = 3600.0
"""After so many seconds, a temporary file is what a killed process left behind."""


def folder() -> Path | None:
    """Return the folder of the cache, or None if nothing is kept."""
    named = os.environ.get(VARIABLE)
    if named is not None and named.strip().lower() in OFF:
        return None
    if named:
        return Path(named).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dmbp"


def switch_off() -> None:
    """Keep and recall nothing in this process and in those that it starts."""
    os.environ[VARIABLE] = OFF[0]


def recall(model: Model, inputs: Tensor) -> CapturedGraph | None:
    """Return the graph that is kept for this model and such inputs, or None.

    A file that cannot be used is deleted, and said so.
    """
    if folder() is None or not isinstance(model, nn.Module):
        return None
    with contextlib.suppress(OSError, RuntimeError):  # no home folder, no permission
        path = _path(model, inputs)
        if path is not None and path.is_file():
            try:
                if path.stat().st_size > MOST_BYTES_OF_A_FILE:
                    raise NotReadable("it is too large")
                captured = unpack(path.read_bytes(), model, inputs)
            except NotReadable as error:
                _drop(path, str(error))
            else:
                os.utime(path)
                return captured
        return _brought_along(model, inputs)
    return None


def keep(captured: CapturedGraph, model: Model, inputs: Tensor) -> None:
    """Keep a graph for later processes, if that is possible."""
    if folder() is None or not isinstance(model, nn.Module):
        return
    try:
        path = _path(model, inputs)
        if path is None:
            return
        content = pack(captured, model, inputs)
        if len(content) <= MOST_BYTES_OF_A_FILE:
            _write(path, content)
            _tidy(path.parent)
    except (NotPackable, OSError, RuntimeError):
        return


def forget(model: Model, inputs: Tensor, why: str) -> None:
    """Delete a graph that was recalled and does not fit its model."""
    if isinstance(model, nn.Module):
        with contextlib.suppress(OSError, RuntimeError):
            path = _path(model, inputs)
            if path is not None and path.is_file():
                _drop(path, why)


def _drop(path: Path, why: str) -> None:
    warnings.warn(f"the captured graph in {shown(path)} is captured again: {why}", stacklevel=2)
    path.unlink(missing_ok=True)


def _brought_along(model: nn.Module, inputs: Tensor) -> CapturedGraph | None:
    """Return the graph in the file that the model's class names, if it is about such inputs."""
    path = getattr(type(model), "captured_graph", None)
    if not isinstance(path, Path) or not path.is_file():
        return None
    try:
        return unpack(path.read_bytes(), model, inputs)
    except NotReadable:
        return None  # it is about photos of another size


def _path(model: nn.Module, inputs: Tensor) -> Path | None:
    """Return the file of a model and a form of inputs, or None if the model is not describable."""
    base = folder()
    if base is None:
        return None
    digest = sha256()
    form = f"{tuple(inputs.shape[1:])} {inputs.dtype} {inputs.device}"
    try:
        for line in (form, torch.__version__, sys.version, _own_code(), *described(model)):
            digest.update(line.encode(errors="backslashreplace") + b"\0")
    except Indescribable:
        return None
    return base / f"{digest.hexdigest()[:40]}{SUFFIX}"


@cache
def _own_code() -> str:
    """Return a digest of the code that captures graphs."""
    digest = sha256()
    for path in sorted(Path(__file__).parent.parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _tidy(base: Path) -> None:
    """Delete what killed processes left behind, and the least recently used files."""
    now = time.time()
    for part in base.glob(".*.part"):
        with contextlib.suppress(OSError):
            if now - part.stat().st_mtime > ABANDONED_AFTER:
                part.unlink()
    found: list[tuple[float, int, Path]] = []
    for path in base.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):
            status = path.stat()
            found.append((status.st_mtime, status.st_size, path))
    total = 0
    for position, (_, size, path) in enumerate(sorted(found, reverse=True)):
        total += size
        if position >= MOST_FILES or total > MOST_BYTES:
            path.unlink(missing_ok=True)
