"""Runs of a plan: continued, sharded, merged, with broken photos; the table is the same."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from dmbp.bench import ResultRow, Store
from dmbp.bench.plan import read_plan
from dmbp.bench.report.table import table
from dmbp.bench.run.driver import RunOptions, Tally, progress, run_plan, summary
from dmbp.errors import DMBPError
from tests.bench.cells import CELL
from tests.bench.conftest import PLAN
from tests.bench.tiny import run_to_table


def test_nothing_is_computed_twice(plan: Path) -> None:
    parsed = read_plan(plan)
    store = plan.parent / "s.sqlite"
    first = run_plan(parsed, store, RunOptions())
    assert (first.done, first.kept, first.failed) == (18, 0, 0)
    again = run_plan(parsed, store, RunOptions(batch=5))
    assert (again.done, again.kept) == (0, 18)
    plan.write_text(PLAN.replace("steps = 4", "steps = 5"))
    changed = run_plan(read_plan(plan), store, RunOptions())
    assert (changed.done, changed.kept) == (18, 0)


def test_shards_make_the_whole(plan: Path) -> None:
    whole = run_to_table(plan, "whole.sqlite")
    for part in range(4):
        run_to_table(plan, f"{part}.sqlite", shard=(part, 4), batch=1 + part)
    first = Store(plan.parent / "0.sqlite")
    for part in (1, 2, 3):
        first.merge(plan.parent / f"{part}.sqlite")
    assert table(read_plan(plan), plan.parent / "0.sqlite") == whole


def test_a_broken_photo_fails_alone(plan: Path) -> None:
    photos = plan.parent / "photos"
    (photos / "cat" / "0.png").write_bytes(b"no image")
    parsed = read_plan(plan)
    store = plan.parent / "s.sqlite"
    tally = run_plan(parsed, store, RunOptions())
    assert (tally.done, tally.failed) == (15, 3)
    ((failure, count),) = Store(store).failures()
    assert "is not an image that can be read" in failure
    assert count == 3
    again = run_plan(parsed, store, RunOptions())
    assert (again.failed, again.failed_before) == (0, 3)  # not tried again
    assert run_plan(parsed, store, RunOptions(retry=True)).failed == 3  # unless told to retry
    Image.new("RGB", (40, 50), "red").save(photos / "cat" / "0.png")
    assert run_plan(parsed, store, RunOptions()).done == 3  # another photo now


def test_a_method_that_raises_on_one_image(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dmbp.attribution.gradcam import GradCAM

    whole = GradCAM.attribute
    calls: list[int] = []

    def sometimes(self: GradCAM, inputs: object, **keywords: object) -> object:
        calls.append(len(inputs))
        if len(inputs) > 1 or len(calls) == 3:
            raise RuntimeError("a kernel failed")
        return whole(self, inputs, **keywords)

    monkeypatch.setattr(GradCAM, "attribute", sometimes)
    store = plan.parent / "s.sqlite"
    tally = run_plan(read_plan(plan), store, RunOptions())
    assert (tally.done, tally.failed) == (17, 1)
    assert Store(store).failures() == [("a kernel failed", 1)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("tests.bench.tiny:tiny", "voc16"), "there is no model 'voc16'; did you mean 'voc160'"),
        (("photos", "foto"), "there is no folder or file"),
    ],
)
def test_a_model_or_dataset_that_does_not_exist(
    plan: Path, change: tuple[str, str], said: str
) -> None:
    plan.write_text(PLAN.replace(*change))
    with pytest.raises(DMBPError, match=said):
        run_to_table(plan, "s.sqlite")


def test_labels_that_the_model_does_not_have(plan: Path) -> None:
    (plan.parent / "photos" / "dog").rename(plan.parent / "photos" / "wolf")
    with pytest.raises(
        DMBPError, match=r"wolf/1\.png is labelled 'wolf', which is not a class of tiny"
    ):
        run_to_table(plan, "s.sqlite")


DOUBLE = """
from dataclasses import replace
from tests.bench.tiny import tiny

def make():
    found = tiny()
    return replace(found, name="double", module=found.module.double())
"""


def test_a_model_in_another_precision(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Photos are converted to its precision; the table is that of single precision."""
    single = run_to_table(plan, "single.sqlite")
    (plan.parent / "in_double.py").write_text(DOUBLE)
    monkeypatch.chdir(plan.parent)
    plan.write_text(PLAN.replace("tests.bench.tiny:tiny", "in_double:make"))
    assert run_to_table(plan, "double.sqlite") == single


def test_rows_are_counted() -> None:
    tally = Tally(total=10)
    tally.keep(3, 1)
    tally.count(
        [ResultRow(CELL, {"IM": 0.5}), ResultRow(replace(CELL, method="dmbp"), failure="no memory")]
    )
    assert (tally.done, tally.failed, tally.kept, tally.left) == (1, 1, 3, 5)


def test_the_pace_counts_only_computed_cells() -> None:
    tally = Tally(total=1000, kept=600, done=99, failed=1)
    assert tally.pace(50.0) == "2 per second, 2 min 30 s left, 1 failed"
    assert Tally(total=100_000, done=10).pace(10.0) == "1 per second, 27 h 46 min left"
    assert Tally(total=5).pace(1.0) == "0 per second"


def test_a_log_has_a_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert summary(Tally(4, done=4), *ran) == "4 computed, 0 already stored, 0 failed"
    said = summary(Tally(4, done=3, failed=1), *ran)
    assert "again: dmbp bench run plan.toml --shard 1/2 --retry" in said
    said = summary(Tally(4, kept=4, failed_before=2), *ran)
    assert "4 already stored, 0 failed; of those already stored 2 failed before" in said
    assert "--retry" in said
