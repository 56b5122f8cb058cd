"""Exports: every row, the same in both formats, a group at a time."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from dmbp.bench import ResultRow, Store
from dmbp.bench.report import files
from dmbp.bench.report.files import export
from dmbp.errors import InputError, OutputError
from tests.bench.cells import CELL


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Twelve rows: one failed, one with another metric, one of a photo with a comma."""
    made = Store(tmp_path / "s.sqlite")
    cells = [replace(CELL, image=f"{k:02d}, é") for k in range(12)]
    made.add(ResultRow(cell, {"IM": k / 12}, {}, seconds=0.5) for k, cell in enumerate(cells[:10]))
    made.add(
        [ResultRow(cells[10], {"IM": 0.9, "cIM": 0.25}), ResultRow(cells[11], failure="no memory")]
    )
    return made


def test_both_formats_hold_the_same(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet")
    monkeypatch.setattr(files, "ROWS_PER_GROUP", 5)
    assert export(store, tmp_path / "a.csv") == 12
    assert export(store, tmp_path / "a.parquet") == 12
    with parquet.ParquetFile(tmp_path / "a.parquet") as file:
        assert file.num_row_groups == 3
        rows = file.read().to_pylist()
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as text:
        lines = list(csv.DictReader(text))
    written = [{k: "" if v is None else str(v) for k, v in row.items()} for row in rows]
    assert written == lines
    assert (rows[10]["cIM"], rows[0]["cIM"]) == (0.25, None)
    assert (rows[11]["failure"], rows[11]["IM"]) == ("no memory", None)
    assert rows[3]["settings"] == '{"signed": true}'


def test_an_empty_store(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra parquet")
    for name in ("a.csv", "a.parquet"):
        assert export(Store(tmp_path / "s.sqlite"), tmp_path / name) == 0
        assert (tmp_path / name).exists()


def test_files_that_cannot_be_written(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"to a \.csv or \.parquet file, not .*a\.xlsx"):
        export(store, tmp_path / "a.xlsx")
    with pytest.raises(OutputError, match="cannot write"):
        export(store, tmp_path / "nowhere" / "a.csv")

    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(files, "import_module", missing)
    with pytest.raises(InputError, match="Parquet files need pyarrow: pip install"):
        export(store, tmp_path / "a.parquet")
