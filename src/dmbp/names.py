"""Names people type, looked up in a table: what to say when one is not there."""

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

from dmbp.errors import DMBPError, InputError

NEARLY_AS_CLOSE = 0.9
"""As the closest name, for another to be meant as well."""


def known(
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
