"""Plots of a plan show what the store has, and name every method."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image
from typer.testing import CliRunner

from dmbp.bench.plan import read_plan
from dmbp.bench.report.files import VariantMeans, task_plot
from dmbp.bench.run.driver import RunOptions, run_plan
from dmbp.bench.store import ResultRow, Store
from dmbp.cli import app
from dmbp.render.benchmark import MethodMark, TaskPlot, draw_benchmark, method_colours
from tests.bench.cells import CELL


def test_the_commands_picture(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(plan.parent)
    Store(plan.parent / "dmbp-bench.sqlite").close()
    runner = CliRunner()
    empty = runner.invoke(app, ["bench", "plot", "plan.toml", "a.png"])
    assert empty.exit_code == 2
    assert "has no scores of this plan" in " ".join(empty.output.split())
    run_plan(read_plan(plan), plan.parent / "dmbp-bench.sqlite", RunOptions())
    for name in ("a.png", "a.svg", "a.pdf"):
        found = runner.invoke(app, ["bench", "plot", "plan.toml", name])
        assert found.exit_code == 0, found.output
    with Image.open("a.png") as picture:
        assert picture.width == 1100
    wrong = runner.invoke(app, ["bench", "plot", "plan.toml", "a.jpg"])
    assert "pictures are written as .png, .svg, .pdf" in " ".join(wrong.output.split())


def test_the_plot_shows_the_stores_means(plan: Path) -> None:
    parsed = read_plan(plan)
    store = Store(plan.parent / "s.sqlite")
    run_plan(parsed, plan.parent / "s.sqlite", RunOptions())
    task = task_plot(parsed.tasks[0], parsed, store)
    assert task.photos == 6
    rows = [row for row in store.rows() if row.cell.method == "gradcam"]
    (mark,) = (mark for mark in task.marks if mark.label == "GC")
    assert mark.score == pytest.approx(sum(row.scores["IM"] for row in rows) / 6)
    assert mark.curve[2] == pytest.approx(sum(row.curves["IM"][2] for row in rows) / 6)
    assert mark.seconds == pytest.approx(sum(row.seconds for row in rows) / 6)


def test_a_row_without_a_curve_leaves_the_others_curves() -> None:
    means = VariantMeans()
    for curves in ({"IM": [0.1, 0.5]}, {}, {"IM": [0.3, 0.7]}):
        means.add(ResultRow(CELL, {"IM": 0.5}, curves), "IM")
    assert means.score.count == 3
    assert [point.mean for point in means.curve] == pytest.approx([0.2, 0.6])


def mark(label: str, score: float, *, curve: bool = True, is_ours: bool = False) -> MethodMark:
    points = [0.1, score, 0.9] if curve else []
    return MethodMark(label, score, 0.02, 0.5 + score, points, [0.01] * len(points), is_ours)


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for row in figure.subfigs for axis in row.axes for text in axis.texts]


def test_every_method_is_named_in_both_panels() -> None:
    marks = [mark(f"M{k}", k / 20) for k in range(12)]
    named = texts(draw_benchmark([TaskPlot("VOC/VGG", "IM", 3, marks)]))
    assert named[:2] == ["0.55  M11", "0.50  M10"]  # the best on top
    assert set(named[12:]) == {f"M{k}" for k in range(12)}


def test_a_metric_without_curves_has_one_panel() -> None:
    marks = [mark("GC", 0.2, curve=False)]
    figure = draw_benchmark([TaskPlot("VOC/VGG", "reinitialisation", 1, marks)])
    (row,) = figure.subfigs
    assert len(row.axes) == 1
    assert "correlation" in row.axes[0].get_ylabel()


def test_ours_have_colours_first_then_the_best() -> None:
    marks = [mark(f"M{k}", k / 20) for k in range(9)] + [mark("DMBP", 0.0, is_ours=True)]
    colours = method_colours([TaskPlot("t", "IM", 3, marks)])
    assert list(colours) == ["DMBP", "M8", "M7", "M6", "M5", "M4"]
    assert len(set(colours.values())) == 6
