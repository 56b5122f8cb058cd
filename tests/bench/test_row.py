"""Rows of a damaged file: each damage is found, and named in one sentence."""

from typing import Any

import pytest

from dmbp.bench.row import COLUMNS, DamagedRow, ResultRow, from_columns, to_columns
from tests.bench.cells import CELL

ROW = ResultRow(CELL, {"IM": 0.5}, {"IM": [0.1] * 29}, seconds=0.25)
NAME = f"the row {CELL.key} (gradcam, a, class cat) is damaged: "

DAMAGES: list[tuple[str, Any, str]] = [
    ("scores", '{"IM": 0.', "'scores' is not JSON"),
    ("scores", "", "'scores' is not JSON"),
    ("scores", b"\x00\xff", "'scores' is not JSON"),
    ("scores", None, "'scores' is not JSON"),
    ("scores", '{"IM": ' + "9" * 5000 + "}", "'scores' is not JSON"),
    ("curves", "[" * 100_000, "'curves' is not JSON"),
    ("scores", "[1, 2]", "'scores' must be a table, not [1, 2]"),
    ("scores", "null", "'scores' must be a table, not None"),
    ("scores", '{"IM": "x"}', "'scores' must be a number, not 'x'"),
    ("scores", '{"IM": true}', "'scores' must be a number, not True"),
    ("scores", '{"IM": NaN}', "'scores' must be a number, not nan"),
    ("scores", '{"IM": 1e999}', "'scores' must be a number, not inf"),
    ("scores", '{"\\udcff": 1}', "'scores' is not JSON"),
    ("curves", '{"IM": [0.5]}', "its IM curve has 1 points, not 29"),
    ("curves", '{"IM": "abc"}', "'curves' must be a list, not 'abc'"),
    ("settings", "[]", "'settings' must be a table, not []"),
    ("settings", '{"signed": false}', "its key is not that of its contents"),
    ("settings", '{"signed": "\\udcff"}', "'settings' is not JSON"),
    ("photo", "p2", "its key is not that of its contents"),
    ("weights", None, "'weights' must be a string, not None"),
    ("model", b"a\xffb", "'model' must be a string, not b'a\\xffb'"),
    ("failure", b"\xff", "'failure' must be a string, not b'\\xff'"),
    ("seconds", "soon", "'seconds' must be a number, not 'soon'"),
    ("seconds", float("inf"), "'seconds' must be a number, not inf"),
    ("written", "then", "'written' must be a number, not 'then'"),
]


@pytest.mark.parametrize(("column", "value", "problem"), DAMAGES)
def test_a_damaged_value_is_named(column: str, value: Any, problem: str) -> None:
    key, *values = to_columns(ROW, 1.0)
    assert from_columns(key, values) == ROW
    values[COLUMNS.index(column)] = value
    assert from_columns(key, values) == DamagedRow(key, NAME + problem)


@pytest.mark.parametrize("key", ["abc", "", b"\xff"])
def test_a_damaged_key_is_named(key: str | bytes) -> None:
    found = from_columns(key, to_columns(ROW, 1.0)[1:])
    assert isinstance(found, DamagedRow)
    assert found.problem.endswith("is damaged: its key is not that of its contents")


def test_a_name_of_damaged_values_can_be_printed() -> None:
    key, *values = to_columns(ROW, 1.0)
    for column, value in {"image": "a\x1b[31m" * 100, "target": b"\xff", "method": None}.items():
        values[COLUMNS.index(column)] = value
    found = from_columns(key, values)
    assert isinstance(found, DamagedRow)
    assert found.problem.isprintable()
    assert len(found.problem) < 400


@pytest.mark.parametrize("version", [1, 3])
def test_rows_of_other_versions_are_not_damaged(version: int) -> None:
    assert from_columns(CELL.key_of_version(version), to_columns(ROW, 1.0)[1:]) == ROW


def test_a_metric_without_a_score_is_kept() -> None:
    row = ResultRow(CELL, {"IM": 0.5}, unscored=frozenset({"cIM", "blue true"}))
    key, *values = to_columns(row, 1.0)
    assert values[COLUMNS.index("scores")] == '{"IM": 0.5, "blue true": null, "cIM": null}'
    assert from_columns(key, values) == row


def scored(failure: str | None = None, unscored: str = "", **scores: float) -> ResultRow:
    return ResultRow(CELL, scores, failure=failure, unscored=frozenset(unscored.split()))


UPDATES = [
    ("a score is added", scored(a=1), scored(b=2), scored(a=1, b=2)),
    ("a score stays", scored(a=1), scored(a=3, b=2), scored(a=1, b=2)),
    ("a failure later", scored(a=1), scored("late", "b"), scored("late", "b", a=1)),
    ("a failure of what is known", scored(a=1), scored("late", "a"), scored(a=1)),
    ("a failure is repaired", scored("no", "a b", c=1), scored(a=2, b=3), scored(a=2, b=3, c=1)),
    ("half repaired", scored("no", "a b"), scored(a=2), scored("no", "b", a=2)),
    ("repaired, does not apply", scored("no", "a"), scored(None, "a"), scored(None, "a")),
    ("fails again", scored("no", "a"), scored("again", "a"), scored("again", "a")),
    ("other metric repaired", scored("no", "a"), scored(b=2), scored("no", "a", b=2)),
]


@pytest.mark.parametrize(
    ("before", "new", "after"), [u[1:] for u in UPDATES], ids=[u[0] for u in UPDATES]
)
def test_a_later_row_adds_what_it_knows(
    before: ResultRow, new: ResultRow, after: ResultRow
) -> None:
    assert before.updated(new) == after
    assert before.updated(before) == before
