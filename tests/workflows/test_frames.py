"""Results as data frames: a row for each explained target or item."""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from dmbp.errors import InputError
from dmbp.workflows.datasets import ExplainedItem
from dmbp.workflows.datasets.folder import DatasetFolder
from dmbp.workflows.frames import COLUMNS, frame

NUMBERS = {
    f"{kind}_without_{what}": 3 * k + j
    for k, kind in enumerate(("score", "probability"))
    for j, what in enumerate(("positive", "negative", "control"))
}
TARGET = {
    "class": 3,
    "name": "cat",
    "probability": 0.9,
    "kind": "class",
    "worth_for": 2.0,
    "worth_against": 0.0,
    "confirmed": True,
    "removal": {"score": 5.0, **NUMBERS},
}
RECORD: dict[str, Any] = {
    "photo": "cat.jpg",
    "model": "voc160",
    "targets": [TARGET, {**TARGET, "name": "dog", "worth_for": None}],
    "exactness": 1e-7,
    "seconds": {"reading": 0.1, "explaining": 0.4},
}


class Explanation:
    """As an explanation gives its record: JSON, or plain values."""

    def __init__(self, record: dict[str, Any], *, as_json: bool) -> None:
        if as_json:
            self.record = lambda: json.dumps(record).encode()
        else:
            self.to_dict = lambda: record


def item(index: int) -> ExplainedItem:
    return ExplainedItem(index, 2, 2, 1, 0.5, 1.0, 0.0, True, 1e-7, 0.1, torch.zeros(3))


@pytest.fixture(params=["pandas", "polars"])
def library(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip(request.param)
    return request.param


def columns(found: Any, name: str) -> list[Any]:
    return found[name].to_list()


def test_a_row_for_each_target(library: Any) -> None:
    both = [Explanation(RECORD, as_json=True), Explanation(RECORD, as_json=False)]
    found = frame(both, library=library)
    assert type(found) is import_module(library).DataFrame
    assert tuple(found.columns) == COLUMNS
    assert columns(found, "input") == ["cat.jpg"] * 4
    assert columns(found, "target") == ["cat", "dog", "cat", "dog"]
    assert columns(found, "score") == [5.0] * 4
    assert columns(found, "score_without_red") == [0] * 4
    assert columns(found, "probability_without_control") == [5] * 4
    assert columns(found, "seconds") == [0.4] * 4
    assert columns(found, "confirmed") == [True] * 4
    assert frame(both[0], library=library).shape == (2, len(COLUMNS))
    assert frame([], library=library).shape == (0, len(COLUMNS))


def test_a_row_for_each_item_and_for_those_in_a_folder(library: Any, tmp_path: Path) -> None:
    items = [item(0), item(1)]
    found = frame(iter(items), library=library)
    assert columns(found, "index") == [0, 1]
    assert "attribution" not in found.columns
    folder = DatasetFolder(tmp_path, {})
    folder.write(0, [k.record() for k in items], [k.attribution for k in items])
    for path in (tmp_path, str(tmp_path)):
        assert frame(path, library=library).equals(found)


def test_what_is_no_result_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has explanations or items of explain_dataset, not 3"):
        frame([3])
    with pytest.raises(InputError, match="or a folder, not of type int"):
        frame(3)
    with pytest.raises(InputError, match="holds no results of explain_dataset"):
        frame(tmp_path)
    with pytest.raises(InputError, match="no library of data frames 'panda'; did you mean"):
        frame([item(0)], library="panda")  # pyright: ignore[reportArgumentType]
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(InputError, match="polars is not installed: pip install polars, or use lib"):
        frame([item(0)], library="polars")
