"""The plans that come with the package: each can be read, and the small ones can be run."""

from pathlib import Path

import pytest

from dmbp.bench.paper import TABLES
from dmbp.bench.plan import read_plan
from dmbp.data.dataset import read_dataset
from dmbp.models import model_names
from tests.conftest import ROOT

PLANS = sorted((ROOT / "plans").glob("*.toml"))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_plans_are_right(path: Path) -> None:
    """Methods, settings, metrics and kinds of datasets are checked as a plan is read."""
    plan = read_plan(path)
    table = TABLES[plan.paper]
    assert {variant.label for variant in plan.variants} >= set(table.methods)
    for task in plan.tasks:
        assert task.model.partition(":")[0] in model_names()
        assert all((task.name, metric) in table.lines for metric in task.metrics)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_whole_plans_have_every_line_of_the_papers(path: Path) -> None:
    plan = read_plan(path)
    lines = {(task.name, metric) for task in plan.tasks for metric in task.metrics}
    missing = {line for line in TABLES[plan.paper].lines if line not in lines and line[1]}
    assert missing == ({("INet/VGG", m) for _, m in missing} if "small" in path.stem else set())


@pytest.mark.parametrize("path", [p for p in PLANS if "small" in p.stem], ids=lambda p: p.stem)
def test_small_plans_find_their_photos(path: Path, shared: Path) -> None:
    for task in read_plan(path).tasks:
        samples = read_dataset(task.dataset, task.path).samples
        assert len(samples) >= 150
        assert all(sample.path.is_file() for sample in samples)
        assert task.weights is not None
        assert task.weights.exists()


def test_there_are_plans() -> None:
    assert len(PLANS) == 6
