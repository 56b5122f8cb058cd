"""The exceptions that dmbp raises on purpose, and helpers for their messages.

    DMBPError
    ├── TargetError             the target class does not exist or does not fit the batch
    ├── InputError              the input tensor or an option cannot be used
    │   ├── SiteError           no activation has the given name
    │   └── UnknownMethod       no attribution method has the given name
    ├── ModelError              the model cannot be built, loaded or run
    │   ├── WeightsError        its weights cannot be read or do not fit
    │   └── CaptureError        it cannot be turned into a linear network
    │       ├── UnsupportedOperation    one of its operations has no freezing rule
    │       └── InexactCapture          the linear network does not reproduce the model
    ├── PhotoError              a photograph cannot be read
    ├── WorkerError             a worker process or machine cannot be started or reached
    └── OutputError             a result cannot be written

A message says in one or two sentences what went wrong, where, and what to do about it. For a name
that does not exist, it suggests the most similar names that do (`require_known`).
"""

import re
import traceback
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path


class DMBPError(Exception):
    """Base class of all errors that the caller can fix; the message says how."""


class TargetError(DMBPError, ValueError):
    """The target does not exist or does not fit the batch."""


class InputError(DMBPError, ValueError):
    """The input tensor or an option cannot be used."""


class SiteError(InputError):
    """No activation of the network has the given name."""


class UnknownMethod(InputError, KeyError):
    """No attribution method has the given name."""

    def __str__(self) -> str:
        """Return the message; a `KeyError` would quote it."""
        return str(self.args[0])


class ModelError(DMBPError):
    """The model cannot be built, loaded or run."""


class WeightsError(ModelError):
    """The weights cannot be read or do not fit the model."""


class CaptureError(ModelError):
    """The model cannot be turned into a linear network."""


class UnsupportedOperation(CaptureError):
    """An operation of the model has no freezing rule.

    Args:
        message: What is unsupported, where, and what to do about it.
        operation: The operation's name, such as `aten.fft_rfft2.default`.
        module: The path of the module that runs it, such as `stem.spectral`.
        way_out: What to do about it, which the message says too.
        others: The model's other unsupported operations; the message counts them.
    """

    def __init__(
        self,
        message: str,
        *,
        operation: str = "",
        module: str = "",
        way_out: str = "",
        others: "tuple[UnsupportedOperation, ...]" = (),
    ) -> None:
        count = len(others)
        more = f"; {count} more cannot be frozen either: run `dmbp doctor` to list them all"
        super().__init__(message + (more if others else ""))
        self.operation = operation
        self.module = module
        self.way_out = way_out
        self.others = others


class InexactCapture(CaptureError):
    """The linear network does not reproduce the model's output."""


class PhotoError(DMBPError):
    """A photograph, or another file to explain, cannot be read."""


class WorkerError(DMBPError):
    """A worker process or machine cannot be started or reached."""


class OutputError(DMBPError):
    """A result cannot be written."""


def one_line(error: DMBPError) -> str:
    """Return an error's message and the notes added to it, as one line."""
    return " ".join(" ".join([str(error), *getattr(error, "__notes__", [])]).split())


def first_line(error: Exception) -> str:
    """Return the first line of an exception's message that is not blank, or else its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_NOT_THE_USERS = re.compile(
    r"(site|dist)-packages[/\\](torch|torchvision)[/\\]|[/\\]contextlib\.py$|^<|^code/|^"
    + re.escape(str(Path(__file__).parent))
)


def place_in(stack: str) -> str:
    """Return the last line of a printed stack that is the user's own code, as "net.py, line 12".

    The lines of PyTorch, torchvision and dmbp do not count. Returns "" if there are no others.
    """
    frames = [frame for frame in _FRAME.findall(stack) if not _NOT_THE_USERS.search(frame[0])]
    if not frames:
        return ""
    file, line = frames[-1]
    name = file.replace("\\", "/").rpartition("/")[2]
    return f"{name}, line {line}"


def place_of(error: BaseException) -> str:
    """Return the line of the user's own code that led to an error, as `place_in` does.

    A note that names a line counts more than the traceback: a TorchScript program runs elsewhere.
    """
    noted = place_in(" ".join(getattr(error, "__notes__", [])))
    frames = traceback.extract_tb(error.__traceback__)
    return noted or place_in(" ".join(f'File "{f.filename}", line {f.lineno}' for f in frames))


NEARLY_AS_CLOSE = 0.9
"""Names are suggested beside the closest one if they are at least this share as similar."""


def require_known(
    what: str, name: str, names: Iterable[str], *, error: type[DMBPError] = InputError
) -> None:
    """Raise an `error` that suggests similar names if `name` is not among `names`."""
    candidates = list(names)
    if name not in candidates:
        raise error(f"there is no {what} {name!r}; {suggestion(name, candidates)}")


def suggestion(name: str, candidates: list[str]) -> str:
    """Return a hint with the candidates most similar to `name`, or else a list of them."""
    lowered = {candidate.lower(): candidate for candidate in candidates}
    matches = get_close_matches(str(name).lower(), lowered, n=3)
    closeness = [SequenceMatcher(None, match, str(name).lower()).ratio() for match in matches]
    close = [
        lowered[match]
        for match, ratio in zip(matches, closeness, strict=True)
        if ratio >= NEARLY_AS_CLOSE * closeness[0]
    ]
    if close:
        return f"did you mean {' or '.join(repr(match) for match in close)}?"
    if len(candidates) == 1:
        return f"there is only {candidates[0]}"
    if len(candidates) <= 12:
        return f"there are {', '.join(candidates)}"
    return f"there are {len(candidates)}, such as {', '.join(candidates[:5])}"
