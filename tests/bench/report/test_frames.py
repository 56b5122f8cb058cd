"""The results of a benchmark as data frames."""

from pathlib import Path
from typing import Any

import pytest

from dmbp.bench import read
from dmbp.bench.report.files import export
from dmbp.bench.report.frames import CURVE_COLUMNS
from dmbp.bench.store import ResultRow, Store
from dmbp.errors import InputError
from tests.bench.cells import cells

CURVE = [0.0, 0.5, 1.0]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "results.sqlite"
    first, second, third = cells(3)
    steps = {"steps": len(CURVE) - 1}
    first, second = (type(k)(**{**vars(k), "scoring": steps}) for k in (first, second))
    rows = [
        ResultRow(first, {"insertion": 0.5}, {"insertion": CURVE}, seconds=0.1),
        ResultRow(second, {"insertion": 0.7, "deletion": 0.2}, seconds=0.2),
        ResultRow(third, failure="no map"),
    ]
    results = Store(path)
    results.add(rows)
    results.close()
    return path


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_rows_and_curves(store: Path, library: Any) -> None:
    pytest.importorskip(library)
    found = read(store, library=library)
    assert found.rows["failure"].to_list()[2] == "no map"
    assert found.rows["insertion"].to_list()[:2] == [0.5, 0.7]
    assert found.rows["seconds"].to_list()[:2] == [0.1, 0.2]
    assert tuple(found.curves.columns) == CURVE_COLUMNS
    assert found.curves["value"].to_list() == CURVE
    assert found.curves["fraction"].to_list() == [0.0, 0.5, 1.0]
    assert found.curves["image"].to_list() == ["image 0"] * 3
    assert found.curves["metric"].to_list() == ["insertion"] * 3


def test_the_columns_are_those_that_are_exported(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    export(Store(store, read_only=True), out)
    assert out.read_text().splitlines()[0].split(",") == list(read(store).rows.columns)
    with pytest.raises(InputError, match="was exported: read it with pandas"):
        read(out)
    with pytest.raises(InputError, match="there is no file of results"):
        read(tmp_path / "nothing.sqlite")
