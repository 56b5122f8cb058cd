"""Runs on a Ray cluster of two nodes, one of which is lost; the rows are those of a local run."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from dmbp.bench import ResultRow
from dmbp.bench.plan import read_plan
from dmbp.bench.report.table import table
from dmbp.bench.run.driver import RunOptions, Tally, run_plan
from dmbp.bench.run.ray_cluster import RayPool, RayWorker, cluster_capacity
from dmbp.cli import app
from dmbp.errors import InputError, WorkerError
from tests.bench.tiny import make_plan, run_undisturbed, stored_rows

RAY_WARNINGS = pytest.mark.filterwarnings("default")  # Ray's own are not ours to fix


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes of one core each, both on this machine."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    utils = pytest.importorskip("ray.cluster_utils")
    cluster = utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


@pytest.mark.slow
@RAY_WARNINGS
def test_a_lost_node_changes_nothing(
    tmp_path: Path, two_nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(tmp_path, photos=24, model="slow")
    store = tmp_path / "s.sqlite"
    lost: list[str] = []
    replace = RayPool.replace

    def noted(self: RayPool, worker: RayWorker, reason: str) -> list[ResultRow]:
        lost.append(reason)
        return replace(self, worker, reason)

    monkeypatch.setattr(RayPool, "replace", noted)

    def lose_a_node(tally: Tally) -> None:
        if tally.done >= 8 and two_nodes.worker_nodes:
            two_nodes.remove_node(next(iter(two_nodes.worker_nodes)), allow_graceful=False)
        if not two_nodes.worker_nodes and not lost:
            time.sleep(0.5)  # a lost node's workers live on for a second or two

    options = RunOptions(batch=2, ray=two_nodes.address)
    tally = run_plan(read_plan(plan), store, options, lose_a_node)
    assert (tally.done, tally.failed, tally.left) == (48, 0, 0)
    assert len(lost) == 1
    assert (stored_rows(store), table(read_plan(plan), store)) == run_undisturbed(plan, batch=2)
    again = run_plan(read_plan(plan), store, RunOptions())
    assert (again.done, again.kept) == (0, 48)


def test_workers_use_gpus_if_there_are_any() -> None:
    def places(**there: float) -> tuple[int, dict[str, float], str]:
        return cluster_capacity(SimpleNamespace(cluster_resources=lambda: there))

    assert places(GPU=4.0, CPU=64.0) == (4, {"num_gpus": 1, "num_cpus": 1}, "cuda")
    assert places(GPU=8.0, CPU=4.0) == (8, {"num_gpus": 1, "num_cpus": 0.5}, "cuda")
    assert places(CPU=3.0) == (3, {"num_cpus": 1}, "cpu")
    with pytest.raises(WorkerError, match="neither GPUs nor cores"):
        places(memory=1e9)


def test_there_is_no_cluster(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    plan = make_plan(tmp_path, photos=2)
    options = RunOptions(ray="127.0.0.1:1")
    with pytest.raises(
        WorkerError, match=r"no Ray cluster at '127.* `ray start --head` starts one"
    ):
        run_plan(read_plan(plan), tmp_path / "s.sqlite", options)


def test_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(tmp_path, photos=2)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"a cluster needs Ray: pip install dmbp\[ray\]"):
        run_plan(read_plan(plan), tmp_path / "s.sqlite", RunOptions(ray="auto"))


def test_a_cluster_chooses_its_devices(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, photos=2)
    found = CliRunner().invoke(app, ["bench", "run", str(plan), "--ray", "auto", "--workers", "2"])
    assert found.exit_code == 2
    assert "leave out --device, --workers" in " ".join(found.output.split())
