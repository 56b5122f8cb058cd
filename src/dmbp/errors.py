"""Every exception dmbp raises on purpose, in one tree.

    DMBPError
    ├── TargetError             the class asked for does not exist, or does not fit the batch
    ├── InputError              the input tensor, or an option, cannot be used
    │   └── SiteError           no activation has the name that was given
    ├── ModelError              the model cannot be built, loaded or run
    │   ├── WeightsError        its weights cannot be read or do not fit
    │   └── CaptureError        it cannot be turned into a linear network
    │       ├── UnsupportedOperation    one of its operations has no freezing rule
    │       └── InexactCapture          the linear network does not reproduce the model
    ├── PhotoError              a photograph cannot be read
    ├── WorkerError             processes or machines that should compute cannot be had
    └── OutputError             a result cannot be written

Each message is one sentence or two for the person in front of the screen: what was met, where,
and what to do about it.

Names people type, looked up in a table: what to say when one is not there.
"""

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches


class DMBPError(Exception):
    """Something the caller can put right; the message says how."""


class TargetError(DMBPError, ValueError):
    """The target does not exist or does not fit the batch."""


class InputError(DMBPError, ValueError):
    """The input tensor or an option cannot be used."""


class SiteError(InputError):
    """No activation of the network has the name that was given."""


class ModelError(DMBPError):
    """The model cannot be built, loaded or run."""


class WeightsError(ModelError):
    """The weights cannot be read or do not fit the model."""


class CaptureError(ModelError):
    """The model cannot be turned into a linear network."""


class UnsupportedOperation(CaptureError):
    """An operation of the model has no freezing rule; `module` is the path of where it stands.

    `others` are those that cannot be frozen either.
    """

    def __init__(
        self,
        message: str,
        *,
        operation: str = "",
        module: str = "",
        others: "tuple[UnsupportedOperation, ...]" = (),
    ) -> None:
        more = f" Nor can {len(others)} more: dmbp doctor names all." if others else ""
        super().__init__(message + more)
        self.operation = operation
        self.module = module
        self.others = others


class InexactCapture(CaptureError):
    """The linear network does not reproduce the model's output."""


class PhotoError(DMBPError):
    """A photograph cannot be read."""


class WorkerError(DMBPError):
    """Processes or machines that should compute cannot be had."""


class OutputError(DMBPError):
    """A result cannot be written."""


def one_line(error: DMBPError) -> str:
    """What an error says, with what was noted on its way, in one line."""
    return " ".join(" ".join([str(error), *getattr(error, "__notes__", [])]).split())


def first_line(error: Exception) -> str:
    """The first line of an exception's message that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


NEARLY_AS_CLOSE = 0.9
"""As the closest name, for another to be meant as well."""


def require_known(
    what: str, name: str, names: Iterable[str], *, error: type[DMBPError] = InputError
) -> None:
    """Refuse a name that is not among `names`, and say which it may have meant."""
    candidates = list(names)
    if name not in candidates:
        raise error(f"there is no {what} {name!r}; {suggestion(name, candidates)}")


def suggestion(name: str, candidates: list[str]) -> str:
    """The nearest names, or the whole list where it is short."""
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
    if len(candidates) <= 12:
        return f"there are {', '.join(candidates)}"
    return f"there are {len(candidates)}, such as {', '.join(candidates[:5])}"
