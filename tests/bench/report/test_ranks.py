"""Mean ranks, Friedman's test and Nemenyi's critical difference against SciPy and by hand."""

import json
import math
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dmbp.bench.plan import read_plan
from dmbp.bench.report.ranks import (
    critical_difference,
    leaderboard,
    rank_methods,
    rankings,
    studentised_range,
)
from dmbp.bench.run.driver import RunOptions, run_plan
from dmbp.cli import app
from dmbp.render.critical_difference import RankPlot, draw_ranks, groups

stats = pytest.importorskip("scipy.stats", reason="scipy is the reference of the tests")

BLOCKS = [
    {"a": 0.1, "b": 0.2, "c": 0.9, "d": 0.9},
    {"a": 0.3, "b": 0.2, "c": 0.8, "d": 0.5},
    {"a": 0.1, "b": 0.4, "c": 0.4, "d": 0.9},
    {"a": 0.2, "b": 0.2, "c": 0.2, "d": 0.3},
    {"a": 0.1, "c": 0.2, "d": 0.3},
]


def test_ranks_by_hand() -> None:
    """The last block lacks b; equal scores share their mean rank."""
    found = rank_methods("x", BLOCKS, ["a", "b", "c", "d", "none"])
    ranks = [(1, 2, 3.5, 3.5), (2, 1, 4, 3), (1, 2.5, 2.5, 4), (2, 2, 2, 4)]
    expected = [sum(column) / 4 for column in zip(*ranks, strict=True)]
    assert list(found.ranks.values()) == pytest.approx(expected)
    assert (found.blocks, found.left_out, found.order[0]) == (4, ("none",), "a")
    columns = [[block[label] for block in BLOCKS[:4]] for label in "abcd"]
    assert found.probability == pytest.approx(stats.friedmanchisquare(*columns).pvalue)


@pytest.mark.parametrize("methods", [2, 3, 10, 27])
def test_the_studentised_range_is_scipys(methods: int) -> None:
    for level in (0.05, 0.1):
        expected = stats.studentized_range.ppf(1 - level, methods, math.inf)
        assert studentised_range(methods, level) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (5, 2.728), (10, 3.164)])
def test_critical_differences_of_demsars_table(methods: int, q: float) -> None:
    scale = math.sqrt(methods * (methods + 1) / (6 * 30))
    assert critical_difference(methods, 30) == pytest.approx(q * scale, abs=6e-4 * scale)


def test_nothing_to_rank() -> None:
    assert rank_methods("x", [{"a": 1.0}], ["a"]).ranks == {}
    same = rank_methods("x", [{"a": 1.0, "b": 1.0}] * 3, ["a", "b"])
    assert (same.probability, same.ranks) == (1.0, {"a": 1.5, "b": 1.5})


def test_bars_connect_what_is_not_significantly_different() -> None:
    plot = RankPlot("x", {"a": 1.0, "b": 1.5, "c": 2.4, "d": 4.0}, critical=1.0)
    assert groups(plot) == [(1.0, 1.5), (1.5, 2.4)]
    assert groups(RankPlot("x", plot.ranks, critical=9.0)) == [(1.0, 4.0)]
    texts = [text.get_text() for axis in draw_ranks([plot]).axes for text in axis.texts]
    assert {"a  1.00", "b  1.50", "2.40  c", "4.00  d"} <= set(texts)


def test_the_commands(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(plan.parent)
    parsed, store = read_plan(plan), plan.parent / "dmbp-bench.sqlite"
    run_plan(parsed, store, RunOptions())
    ranked = rankings(parsed, store)
    assert [ranking.metric for ranking in ranked] == ["overall", "IM", "deletion"]
    assert [ranking.blocks for ranking in ranked] == [2, 6, 6]
    assert sum(ranked[1].ranks.values()) == pytest.approx(6)
    text = CliRunner().invoke(app, ["bench", "ranks", "plan.toml"]).output
    assert text == leaderboard(parsed, store)
    assert text.startswith("| mean rank | overall | IM | deletion |")
    assert f"| **{ranked[0].order[0]}** | **" in text
    assert "| VOC/RN50 | IM ↑ | deletion ↓ |" in text
    assert "- IM: 6 questions, 3 methods, Friedman's p " in text
    found = CliRunner().invoke(app, ["bench", "ranks", "plan.toml", "--format", "json"])
    tree = json.loads(found.output)
    assert tree["ranks"][1]["mean_ranks"] == pytest.approx(dict(ranked[1].ranks))
    assert len(tree["scores"]) == 6
    drawn = CliRunner().invoke(app, ["bench", "plot", "plan.toml", "cd.png", "--ranks"])
    assert drawn.exit_code == 0, drawn.output
    assert (plan.parent / "cd.png").stat().st_size > 5000


def test_means_over_other_questions_are_not_compared(
    plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plan.parent)
    parsed, store = read_plan(plan), plan.parent / "dmbp-bench.sqlite"
    run_plan(parsed, store, RunOptions())
    label = parsed.variants[0].label
    method = parsed.variants[0].method

    def forget(most: int) -> None:
        with closing(sqlite3.connect(store)) as connection, connection:
            connection.execute(
                "DELETE FROM rows WHERE key IN (SELECT key FROM rows WHERE method = ? "
                "ORDER BY key LIMIT ?)",
                (method, most),
            )

    forget(1)
    overall, by_insertion, _ = rankings(parsed, store)
    assert (overall.blocks, by_insertion.blocks) == (2, 5)
    assert f"6 questions; so far fewer for: {label} 5" in leaderboard(parsed, store)
    forget(3)
    overall, by_insertion, _ = rankings(parsed, store)
    assert (overall.blocks, by_insertion.blocks) == (2, 6)
    assert overall.left_out == (label,)


def test_a_method_that_a_task_leaves_out_has_no_row(
    plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plan.parent)
    label = read_plan(plan).variants[0].label
    plan.write_text(plan.read_text().replace("[[tasks]]\n", f'[[tasks]]\nwithout = ["{label}"]\n'))
    parsed, store = read_plan(plan), plan.parent / "dmbp-bench.sqlite"
    run_plan(parsed, store, RunOptions(shard=(0, 3)))
    _, means = leaderboard(parsed, store).split("| VOC/RN50 |")
    assert f"**{label}**" not in means
    assert means.count("**") == 4


THREE = """
methods = ["gradient", "gradcam", "random"]
tasks = [
    { name = "A [x]", metrics = ["IM", "deletion"], WHAT },
    { name = "A, weights", metrics = ["deletion"], WHAT },
    { name = "B", metrics = ["IM", "blue true"], without = ["Grad"], WHAT },
]
"""
WHAT = 'dataset = "folder", path = "photos", model = "tests.bench.tiny:tiny", steps = 4'


@pytest.fixture
def three(plan: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a plan with three tasks, one of which lacks a method, and its results."""
    monkeypatch.chdir(plan.parent)
    plan.write_text(THREE.replace("WHAT", WHAT))
    run_plan(read_plan(plan), plan.parent / "dmbp-bench.sqlite", RunOptions())
    return plan.parent


def test_tasks_that_lack_a_method_are_named(three: Path) -> None:
    parsed, store = read_plan(three / "plan.toml"), three / "dmbp-bench.sqlite"
    overall, by_insertion, *_ = rankings(parsed, store)
    assert (overall.blocks, by_insertion.blocks) == (3, 6)
    assert [part.task for part in by_insertion.incomplete] == ["B"]
    text = leaderboard(parsed, store)
    assert "Not in the mean ranks, which need each method that most tasks have" in text
    assert "\n- B: not in any; it lacks Grad\n" in text
    alone = leaderboard(parsed.with_tasks(["A*"]), store)
    assert "Not in the mean ranks" not in alone
    assert json.loads(leaderboard(parsed, store, "json"))["ranks"][0]["incomplete"] == [
        {"task": "B", "metrics": [], "missing": ["Grad"]}
    ]


def test_metrics_that_lack_a_method_are_named(three: Path) -> None:
    parsed, store = read_plan(three / "plan.toml"), three / "dmbp-bench.sqlite"
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute(
            "UPDATE rows SET scores = json_remove(scores, '$.deletion') WHERE method = 'random'"
        )
    text = leaderboard(parsed.with_tasks(["A [x]", "B"]), store)
    assert "\n- deletion of A [x]: not in overall; some methods have too few scores\n" in text


def test_ranks_and_pictures_of_some_tasks(three: Path) -> None:
    def run_command(*words: str) -> str:
        found = CliRunner().invoke(app, ["bench", *words])
        assert found.exit_code == 0, found.output
        return found.output

    text = run_command("ranks", "plan.toml", "--task", "B")
    assert text.startswith("| mean rank | overall | IM |")
    assert "| B | IM ↑ |" in text
    assert "A [x]" not in text
    assert "Grad" not in text
    both = run_command("ranks", "plan.toml", "--task", "A [x]", "--task", "*weights")
    assert [name in both for name in ("| A [x] |", "| A, weights |", "| B |")] == [1, 1, 0]
    assert run_command("ranks", "plan.toml", "--task", "*") == run_command("ranks", "plan.toml")
    assert "→ b.png" in run_command("plot", "plan.toml", "b.png", "--ranks", "--task", "B")
    found = CliRunner().invoke(app, ["bench", "ranks", "plan.toml", "--task", "C*"])
    assert found.exit_code == 2
    assert "no task of the plan matches 'C*'; its tasks are 'A [x]', 'A, weights'" in found.output


def test_labels_and_curves_are_exported(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(plan.parent)
    signed = "{ name = 'gradcam', label = 'CAM, signed', settings = { signed = true } }"
    plan.write_text(plan.read_text().replace('"random"', signed))
    run_plan(read_plan(plan), plan.parent / "dmbp-bench.sqlite", RunOptions(shard=(0, 6)))

    def run_command(*words: str) -> str:
        found = CliRunner().invoke(app, ["bench", *words])
        assert found.exit_code == 0, found.output
        return found.output

    assert "gradcam (GC, signed=True): 1 done" in run_command("status")
    assert "gradcam (CAM, signed): 1 done" in run_command("status", "--plan", "plan.toml")
    assert "3 rows" in run_command("export", "rows.csv", "--plan", "plan.toml")
    assert "CAM, signed" in (plan.parent / "rows.csv").read_text()
    assert "30 points" in run_command("export", "curves.csv", "--curves")  # 3 maps, 2 curves of 5
    lines = (plan.parent / "curves.csv").read_text().splitlines()
    assert lines[0].endswith("label,metric,step,fraction,value")
    assert len(lines) == 31
    points = run_command("export", "curves.parquet", "--curves", "--plan", "plan.toml")
    assert points.startswith("30 points")
