"""What a run says about its progress and its end."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from dmbp.bench import ResultRow
from dmbp.bench.run.driver import Tally, progress, summary
from tests.bench.cells import CELL


def test_rows_are_counted() -> None:
    tally = Tally(total=10)
    tally.keep(3, 1)
    tally.count(
        [ResultRow(CELL, {"IM": 0.5}), ResultRow(replace(CELL, method="dmbp"), failure="no memory")]
    )
    assert (tally.done, tally.failed, tally.kept, tally.left) == (1, 1, 3, 5)


def test_the_pace_is_of_what_was_computed() -> None:
    tally = Tally(total=1000, kept=600, done=99, failed=1)
    assert tally.pace(50.0) == "2 a second, 2 min 30 s left, 1 failed"
    assert Tally(total=100_000, done=10).pace(10.0) == "1 a second, 27 h 46 min left"
    assert Tally(total=5).pace(1.0) == "0 a second"


def test_a_log_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    with progress(Console(file=said), quiet=False) as show:
        show(Tally(total=4, done=1, kept=1))
        show(Tally(total=4, done=2, kept=1))
        assert said.getvalue().startswith("2 of 4: ")  # the first at once
        assert "3 of 4" not in said.getvalue()
        monkeypatch.setattr("dmbp.bench.run.driver.SECONDS_BETWEEN_LINES", 0.0)
        show(Tally(total=4, done=3, kept=1))
    assert "4 of 4: " in said.getvalue()
    with progress(Console(file=said), quiet=True) as show:
        show(Tally(total=4, done=3))
    assert "3 of 4" not in said.getvalue()


def test_a_summary_says_how_to_try_again() -> None:
    ran = Path("s.sqlite"), "dmbp bench run plan.toml --shard 1/2"
    assert summary(Tally(4, done=4), *ran) == "4 computed, 0 there already, 0 failed"
    said = summary(Tally(4, done=3, failed=1), *ran)
    assert "again: dmbp bench run plan.toml --shard 1/2 --retry" in said
    said = summary(Tally(4, kept=4, failed_before=2), *ran)
    assert "4 there already, 0 failed; of those there already 2 failed before" in said
    assert "--retry" in said
