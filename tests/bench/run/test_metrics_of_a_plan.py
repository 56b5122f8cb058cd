"""Metrics share maps: adding or removing one computes no map, and like tasks are computed once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dmbp.attribution.gradcam import GradCAM
from dmbp.attribution.gradient import Gradient
from dmbp.bench import Store
from dmbp.bench.map_folder import MapFolder, folder_beside, folder_size
from dmbp.bench.plan import read_plan
from dmbp.bench.report.table import table
from dmbp.bench.run.driver import RunOptions, Tally, count_missing, run_plan
from dmbp.errors import InputError
from tests.bench.cells import CELL
from tests.bench.conftest import PLAN
from tests.bench.tiny import stored_rows

KEPT = RunOptions(keep_maps=True)


@pytest.fixture
def maps_computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many maps each call computes, of the two methods of `two_methods`."""
    computed: list[int] = []
    for method in (Gradient, GradCAM):
        whole: Any = method.attribute

        def counted(self: Any, inputs: Any, *rest: Any, whole: Any = whole, **named: Any) -> Any:
            computed.append(len(inputs))
            return whole(self, inputs, *rest, **named)

        monkeypatch.setattr(method, "attribute", counted)
    return computed


def with_metrics(plan: Path, *metrics: str) -> Path:
    """Write a plan of two methods with these metrics, and return it."""
    text = PLAN.replace(', "random"', "").replace('["IM", "deletion"]', str(list(metrics)))
    plan.write_text(text)
    return plan


def run(plan: Path, store: str = "s.sqlite", options: RunOptions = KEPT) -> Tally:
    return run_plan(read_plan(plan), plan.parent / store, options)


def scores(plan: Path, store: str = "s.sqlite") -> list[dict[str, float]]:
    return [dict(row.scores) for row in Store(plan.parent / store).rows()]


def test_a_metric_less_computes_nothing(plan: Path, maps_computed: list[int]) -> None:
    with_metrics(plan, "IM", "deletion", "sparseness")
    first = run(plan, options=RunOptions())
    assert (first.done, sum(maps_computed)) == (12, 12)
    with_metrics(plan, "deletion", "IM")
    again = run(plan, options=RunOptions())
    assert (again.done, again.kept, sum(maps_computed)) == (0, 12, 12)
    assert "sparseness" not in table(read_plan(plan), plan.parent / "s.sqlite")


def test_a_metric_more_reads_the_kept_maps(plan: Path, maps_computed: list[int]) -> None:
    """The scores are those of a run with both, to the last bit; others stay as they were."""
    run(with_metrics(plan, "IM"))
    assert folder_size(folder_beside(plan.parent / "s.sqlite"))[0] == 12
    computed = len(maps_computed)
    both = with_metrics(plan, "IM", "rank accuracy", "sparseness", "infidelity", "red true")
    assert count_missing(read_plan(both), plan.parent / "s.sqlite").left == 12
    tally = run(both)
    assert (tally.done, tally.kept, tally.failed) == (12, 0, 0)
    assert len(maps_computed) == computed
    run(both, "whole.sqlite", RunOptions())
    assert stored_rows(plan.parent / "s.sqlite") == stored_rows(plan.parent / "whole.sqlite")
    rows = list(Store(plan.parent / "s.sqlite").rows())
    assert all(row.unscored == {"rank accuracy"} for row in rows)  # the photos have no boxes
    assert all(row.seconds is not None for row in rows)
    assert run(both).kept == 12


def test_without_kept_maps_they_are_computed_again(plan: Path, maps_computed: list[int]) -> None:
    run(with_metrics(plan, "IM"), options=RunOptions())
    assert not folder_beside(plan.parent / "s.sqlite").exists()
    run(with_metrics(plan, "IM", "sparseness"), options=RunOptions())
    assert sum(maps_computed) == 24
    assert all(found.keys() == {"IM", "sparseness"} for found in scores(plan))


def test_a_damaged_map_is_computed_again(plan: Path, maps_computed: list[int]) -> None:
    run(with_metrics(plan, "IM"))
    files = sorted(folder_beside(plan.parent / "s.sqlite").glob("??/*.map"))
    contents = [file.read_bytes() for file in files]
    files[0].write_bytes(contents[0][: len(contents[0]) // 2])
    files[1].write_bytes(contents[1].replace(b"float32", b"float16"))
    files[2].write_bytes(b"")
    files[3].write_bytes(contents[3][:-8] + bytes(8))
    before = sum(maps_computed)
    run(with_metrics(plan, "sparseness"))
    assert sum(maps_computed) == before + 4
    assert [file.read_bytes() for file in files] == contents
    assert not list(files[0].parent.parent.glob("??/*.part"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_maps_are_kept_to_the_last_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    folder = MapFolder(tmp_path / "maps")
    cell = replace(CELL, scoring={"activation": "softmax", "seen": [1]})
    attribution = torch.randn(1, 1, 5, 7, dtype=dtype)
    attribution[0, 0, 0, :2] = torch.tensor([torch.inf, -0.0])
    assert folder.get(cell) is None
    folder.put(cell, attribution)
    found = folder.get(cell)
    assert found is not None
    assert found.dtype == dtype
    assert torch.equal(found, attribution)
    other = replace(cell, scoring={**cell.scoring, "steps": 4})
    assert folder.get(other) is not None  # what metrics do does not change the map
    assert folder.get(replace(cell, target="dog")) is None


def test_like_tasks_are_computed_once(plan: Path, maps_computed: list[int]) -> None:
    """One differs in its metrics, the other in the number of photos, which they have in common."""
    text = with_metrics(plan, "IM").read_text()
    head, task = text.split("[[tasks]]")
    more = task.replace('"VOC/RN50"', '"more"').replace("['IM']", '["sparseness", "IM"]')
    few = task.replace('"VOC/RN50"', '"few"') + "first = 2\n"
    plan.write_text(head + "".join(f"[[tasks]]{each}" for each in (task, more, few)))
    tally = run(plan, options=RunOptions())
    assert sum(maps_computed) == 12
    assert (tally.total, tally.done, tally.kept, tally.left) == (16, 12, 4, 0)
    text = table(read_plan(plan), plan.parent / "s.sqlite")
    assert "- more, sparseness: 6 photos" in text
    assert "- few, IM: 2 photos" in text
    assert "not computed" not in text
    again = run(plan, options=RunOptions())
    assert (again.done, again.kept) == (0, 16)


def test_a_metric_that_fails_leaves_the_others(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again with --retry only, and computes nothing else."""
    from dmbp import metrics

    whole = metrics.sparseness

    def on_some(maps: torch.Tensor) -> torch.Tensor:
        if (maps.flatten(1).amax(1) == maps.max()).any() and float(maps.min()) < 0:
            raise RuntimeError("no such thing")
        return whole(maps)

    monkeypatch.setattr(metrics, "sparseness", on_some)
    plan = with_metrics(plan, "IM", "sparseness")
    tally = run(plan, options=RunOptions())
    assert (tally.done, tally.failed) == (6, 6)  # GradCAM's maps have no negative pixels
    rows = list(Store(plan.parent / "s.sqlite").rows())
    failed = [row for row in rows if row.failure is not None]
    assert {row.failure for row in failed} == {"sparseness: no such thing"}
    assert all(row.scores.keys() == {"IM"} for row in failed)
    text = table(read_plan(plan), plan.parent / "s.sqlite")
    assert "- VOC/RN50, sparseness, Grad: 6 failed" in text
    assert "IM, Grad" not in text
    again = run(plan, options=RunOptions())
    assert (again.done, again.kept, again.failed_before) == (0, 12, 6)
    monkeypatch.setattr(metrics, "sparseness", whole)
    mended = run(plan, options=RunOptions(retry=True))
    assert (mended.done, mended.kept) == (6, 6)
    assert all(row.failure is None for row in Store(plan.parent / "s.sqlite").rows())


def test_rows_of_earlier_versions_are_found(plan: Path) -> None:
    """Their scoring names the metrics; a plan with exactly these finds them."""
    plan = with_metrics(plan, "deletion", "IM")
    run(plan, options=RunOptions())
    old = [
        replace(
            row,
            cell=replace(
                row.cell,
                scoring={**row.cell.scoring, "others": [], "metrics": ["IM", "deletion"]},
            ),
        )
        for row in Store(plan.parent / "s.sqlite").rows()
    ]
    Store(plan.parent / "old.sqlite").add(old)
    tally = run(plan, "old.sqlite", RunOptions())
    assert (tally.done, tally.kept) == (0, 12)
    assert table(read_plan(plan), plan.parent / "old.sqlite") == table(
        read_plan(plan), plan.parent / "s.sqlite"
    )
    with_metrics(plan, "IM")
    assert run(plan, "old.sqlite", RunOptions()).done == 12


def test_masked_images_in_16_bits(plan: Path) -> None:
    """Another identity, nearly the same scores; colours and maps stay in full precision."""
    run(with_metrics(plan, "IM", "red true", "infidelity"))
    full = scores(plan)
    plan.write_text(plan.read_text() + 'precision = "bfloat16"\n')
    kept = folder_size(folder_beside(plan.parent / "s.sqlite"))
    assert run(plan).done == 12
    assert folder_size(folder_beside(plan.parent / "s.sqlite")) == kept
    rows = [
        row for row in Store(plan.parent / "s.sqlite").rows() if "precision" in row.cell.scoring
    ]
    assert len(rows) == 12
    for row, exact in zip(rows, full, strict=True):
        assert row.scores["IM"] == pytest.approx(exact["IM"], abs=0.02)
        assert row.scores["IM"] != exact["IM"]
        assert row.scores["red true"] == exact["red true"]


def test_a_method_that_a_task_leaves_out(plan: Path, maps_computed: list[int]) -> None:
    text = with_metrics(plan, "IM").read_text()
    plan.write_text(text + 'without = ["GC"]\n')
    tally = run(plan, options=RunOptions())
    assert (tally.total, tally.done, tally.left, sum(maps_computed)) == (6, 6, 0, 6)
    text = table(read_plan(plan), plan.parent / "s.sqlite")
    assert "- VOC/RN50, IM: 6 photos, 6 questions per method" in text
    assert "not computed" not in text
    plan.write_text(plan.read_text().replace('["GC"]', '["GG"]'))
    with pytest.raises(InputError, match="in 'without' of task 'VOC/RN50': 'GG'; there are"):
        read_plan(plan)


def test_a_method_that_refuses_the_network_is_not_tried_on_every_photo(
    plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(_: Any, inputs: torch.Tensor, **__: Any) -> None:
        asked.append(len(inputs))
        raise InputError("this network has no attention")

    monkeypatch.setattr(GradCAM, "attribute", refuse)
    tally = run(with_metrics(plan, "IM"), options=RunOptions())
    assert (tally.done, tally.failed, asked) == (6, 6, [6, 1, 1])


def test_masks_of_a_manifest(plan: Path) -> None:
    """The object is the right half of each photo."""
    from PIL import Image

    from dmbp import metrics

    photos = plan.parent / "photos"
    Image.new("L", (32, 32)).save(photos / "mask.png")
    with Image.open(photos / "mask.png") as image:
        image.paste(255, (16, 0, 32, 32))
        image.save(photos / "mask.png")
    lines = [
        "file,label,mask",
        "cat/0.png,cat,mask.png",
        "dog/1.png,dog,",
        "dog/3.png,dog,mask.png",
    ]
    (photos / "list.csv").write_text("\n".join(lines))
    with_metrics(plan, "mass accuracy", "pointing", "energy pointing")
    text = (
        plan.read_text().replace('"folder"', '"manifest"').replace('"photos"', '"photos/list.csv"')
    )
    plan.write_text(text + 'fit = "squeeze"\n')
    run(plan)
    rows = {
        (row.cell.image, row.cell.method): row for row in Store(plan.parent / "s.sqlite").rows()
    }
    assert [row.failure for row in rows.values()] == [None] * 6
    assert rows["dog/1.png", "gradient"].scores == {}
    folder = MapFolder(folder_beside(plan.parent / "s.sqlite"))
    for image in ("cat/0.png", "dog/3.png"):
        row = rows[image, "gradient"]
        maps = folder.get(row.cell)
        assert maps is not None
        mask = torch.zeros(1, 16, 16)
        mask[..., 8:] = 1
        expected = float(metrics.mass_accuracy(maps, mask))
        assert row.scores["mass accuracy"] == expected
        assert row.scores["energy pointing"] == expected
        assert row.scores["pointing"] == float(maps[0, 0].argmax() % 16 >= 8)
    text = table(read_plan(plan), plan.parent / "s.sqlite")
    assert "mass accuracy: 2 photos, 2 questions per method" in text


def test_maps_of_random_models_are_those_of_the_metrics_alone(plan: Path) -> None:
    from dmbp import metrics
    from dmbp.attribution import METHODS
    from dmbp.bench.scoring import SMOOTHED, STAGES
    from dmbp.data import read_photo
    from tests.bench.tiny import tiny

    with_metrics(plan, "MPRT", "MPRT bottom-up", "sMPRT", "random logit", "max-sensitivity")
    run(plan, options=RunOptions(shard=(0, 6)))
    module, seen = tiny().module, tiny().preprocessing
    for row in Store(plan.parent / "s.sqlite").rows():
        inputs = seen.tensor(seen.view(read_photo(plan.parent / "photos" / row.cell.image)))
        method, target = METHODS[row.cell.method], int(row.cell.target)
        about = (method, module, inputs, target)
        assert row.scores["MPRT"] == pytest.approx(
            float(metrics.cascade(*about, stages=STAGES).score), abs=1e-3
        )
        assert row.scores["MPRT bottom-up"] == pytest.approx(
            float(metrics.cascade(*about, stages=STAGES, order="bottom_up").score), abs=1e-3
        )
        assert row.scores["random logit"] == pytest.approx(
            float(metrics.random_logit(*about)), abs=1e-3
        )
        copies = metrics.noisy_copies(inputs, SMOOTHED)
        assert len(copies) == SMOOTHED
        assert -1 <= row.scores["sMPRT"] <= 1
        assert row.scores["max-sensitivity"] >= 0
