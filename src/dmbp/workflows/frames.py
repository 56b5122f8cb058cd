"""Results as data frames of pandas or Polars, which are imported only when they are asked for.

    frame(dmbp.explain(["cat.jpg", "dog.jpg"]))  # one row for each explained target
    frame(explain_dataset(data, model))          # one row for each item
    frame("maps", library="polars")              # the folder that explain_dataset wrote

    >>> record = {"photo": "cat.jpg", "targets": [{"name": "cat", "worth_for": 2.5}]}
    >>> frame(record)[["input", "target", "worth_for"]].values.tolist()
    [['cat.jpg', 'cat', 2.5]]

Rows are made of plain values alone. An attribution is no plain value, and is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal, cast

from dmbp.errors import InputError, require_known
from dmbp.workflows.datasets.folder import read_records

Library = Literal["pandas", "polars"]
LIBRARIES: tuple[Library, ...] = ("pandas", "polars")

COLUMNS = (
    *("input", "model", "target", "kind", "probability", "score", "worth_for", "worth_against"),
    *("score_without_red", "score_without_blue", "score_without_control"),
    *("probability_without_red", "probability_without_blue", "probability_without_control"),
    *("confirmed", "exactness", "seconds"),
)
"""The columns of a row about one target of one input."""

REMOVALS = {"positive": "red", "negative": "blue", "control": "control"}
"""What is removed, by the endings of a record's numbers and of the columns."""

NAMES_OF_INPUT = ("input", "photo", "array", "file", "name")


def frame(results: Any, *, library: Library = "pandas") -> Any:
    """Return results as a data frame, a row for each explained target.

    Args:
        results: Explanations or items of `explain_dataset`, in any iterable; a single explanation;
            the records of either; or the folder that `explain_dataset` wrote.
        library: "pandas" or "polars".

    Returns:
        A `pandas.DataFrame` or a `polars.DataFrame`. Of explanations it has the columns `COLUMNS`,
        of items those of `ExplainedItem.record`.

    Raises:
        InputError: If the library is unknown or not installed, or something is no result.
    """
    return make_frame(list(rows(results)), library=library)


def make_frame(
    rows: Sequence[Mapping[str, Any]], *, library: Library, columns: Sequence[str] | None = None
) -> Any:
    """Return rows of plain values as a data frame; the columns are those of the rows, or given.

    Raises:
        InputError: If the library is unknown or not installed.
    """
    require_known("library of data frames", library, LIBRARIES)
    if columns is None:
        columns = list(dict.fromkeys(name for row in rows for name in row)) or list(COLUMNS)
    values = {name: [row.get(name) for row in rows] for name in columns}
    try:
        module: Any = import_module(library)
    except ImportError as error:
        raise InputError(
            f"{library} is not installed: pip install {library}, or use library="
            f"{next(k for k in LIBRARIES if k != library)!r}"
        ) from error
    options = {"strict": False} if library == "polars" else {}  # a column may mix numbers and text
    return module.DataFrame(values, **options)


def rows(results: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a data frame, a dictionary of plain values for each.

    Raises:
        InputError: If something is no result.
    """
    if isinstance(results, str) or hasattr(results, "__fspath__"):
        results = read_records(results)
    if is_result(results):
        results = [results]
    if not isinstance(results, Iterable):
        raise InputError(
            "results must be explanations, items of explain_dataset or a folder, not of type "
            f"{type(results).__name__}"
        )
    for result in results:
        if not is_result(result):
            raise InputError(
                f"a data frame has explanations or items of explain_dataset, not {result!r:.60}"
            )
        yield from _rows_of(_record(result))


def is_result(value: Any) -> bool:
    """Return whether a value is a single result, or the record of one."""
    if isinstance(value, Mapping):
        return "targets" in value or "index" in value
    return not isinstance(value, type) and (hasattr(value, "record") or hasattr(value, "to_dict"))


def _record(result: Any) -> Mapping[str, Any]:
    """Return what a result is as plain values; explanations may give them as JSON."""
    if isinstance(result, Mapping):
        return cast("Mapping[str, Any]", result)
    found = result.to_dict() if hasattr(result, "to_dict") else result.record()
    return json.loads(found) if isinstance(found, bytes | str) else found


def _rows_of(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if "targets" not in record:
        target = record.get("target")
        yield {**record, "target": json.dumps(target) if isinstance(target, dict) else target}
        return
    name = next((record[key] for key in NAMES_OF_INPUT if key in record), None)
    seconds = record.get("seconds")
    for target in record["targets"]:
        removal = target.get("removal") or {}
        without = {
            f"{number}_without_{colour}": removal.get(f"{number}_without_{ending}")
            for number in ("score", "probability")
            for ending, colour in REMOVALS.items()
        }
        yield {
            "input": name,
            "model": record.get("model"),
            "target": target.get("name"),
            "kind": target.get("kind"),
            "probability": target.get("probability"),
            "score": removal.get("score"),
            "worth_for": target.get("worth_for"),
            "worth_against": target.get("worth_against"),
            **without,
            "confirmed": target.get("confirmed"),
            "exactness": record.get("exactness"),
            "seconds": seconds.get("explaining") if isinstance(seconds, Mapping) else seconds,
        }
