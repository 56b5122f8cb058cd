"""Runs of a plan: interrupted, sharded, merged, with broken photos; the table is the same."""

from pathlib import Path

import pytest
from PIL import Image

from dmbp.bench import Store
from dmbp.bench.plan import read_plan
from dmbp.bench.report.table import table
from dmbp.bench.run.driver import RunOptions, run_plan
from dmbp.errors import DMBPError
from tests.bench.conftest import PLAN
from tests.bench.tiny import run_to_table


def test_nothing_is_computed_twice(plan: Path) -> None:
    asked = read_plan(plan)
    store = plan.parent / "s.sqlite"
    first = run_plan(asked, store, RunOptions())
    assert (first.done, first.kept, first.failed) == (18, 0, 0)
    again = run_plan(asked, store, RunOptions(batch=5))
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


def test_broken_and_vanished_photos_fail_alone(plan: Path) -> None:
    photos = plan.parent / "photos"
    (photos / "cat" / "0.png").write_bytes(b"no image")
    asked = read_plan(plan)
    store = plan.parent / "s.sqlite"
    tally = run_plan(asked, store, RunOptions())
    assert (tally.done, tally.failed) == (15, 3)
    ((failure, count),) = Store(store).failures()
    assert "is not an image that can be read" in failure
    assert count == 3
    again = run_plan(asked, store, RunOptions())
    assert (again.failed, again.failed_before) == (0, 3)  # not tried again
    assert run_plan(asked, store, RunOptions(retry=True)).failed == 3  # unless asked to
    Image.new("RGB", (40, 50), "red").save(photos / "cat" / "0.png")
    assert run_plan(asked, store, RunOptions()).done == 3  # another photo now


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
        (("voc160", "voc16"), "there is no model 'voc16'; did you mean 'voc160'"),
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
    with pytest.raises(DMBPError, match=r"wolf/1\.png is labelled 'wolf', no class of voc160"):
        run_to_table(plan, "s.sqlite")


DOUBLE = """
from dataclasses import replace
from dmbp.models import load_model

def make():
    found = load_model("voc160")
    return replace(found, name="double", module=found.module.double())
"""


def test_a_model_in_another_precision(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Photos are given to it as it computes: the table is that of single precision."""
    single = run_to_table(plan, "single.sqlite")
    (plan.parent / "in_double.py").write_text(DOUBLE)
    monkeypatch.chdir(plan.parent)
    plan.write_text(PLAN.replace("voc160", "in_double:make"))
    assert run_to_table(plan, "double.sqlite") == single
