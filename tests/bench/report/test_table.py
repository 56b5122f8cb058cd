"""Tables in the paper's layouts, from known rows; everything that is missing is noted."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from dmbp import methods, metrics
from dmbp.bench.paper import TABLES
from dmbp.bench.plan import Plan, Task, make_variant, read_plan
from dmbp.bench.report import files
from dmbp.bench.report.lines import (
    RunningMean,
    ScoreSummary,
    TableLine,
    average_line,
    rank_best,
    table_lines,
)
from dmbp.bench.report.table import as_markdown, methods_across, table, tasks_across
from dmbp.bench.run.driver import RunOptions, run_plan
from dmbp.bench.scoring import SCORERS
from dmbp.bench.store import Store
from dmbp.data import read_photo
from dmbp.errors import InputError
from dmbp.metric_table import METRICS
from dmbp.render.benchmark import TaskPlot, draw_benchmark
from tests.bench.conftest import PLAN
from tests.bench.tiny import tiny


def score(*values: float) -> ScoreSummary:
    mean = RunningMean()
    for value in values:
        mean.add(value)
    return ScoreSummary(mean)


def test_means_over_different_photos_are_not_compared() -> None:
    """A method that failed on hard photos would look good; a broken photo fails for all."""
    few, most, many = score(0.9), score(0.5, 0.5), score(0.1, 0.1)
    few.failed = 1
    unfair = TableLine("VOC/RN50", "IM", 2, 2, {"Grad": few, "GC": many}, {})
    fair = TableLine("VOC/RN50", "IM", 2, 2, {"Grad": most, "GC": many}, {})
    marked = [methods_across([line], ["Grad", "GC"]).rows[0][2].bold for line in (unfair, fair)]
    assert marked == [False, True]
    both = (make_variant("gradient", {}), make_variant("gradcam", {}))
    plan = Plan((Task("VOC/RN50", "voc", Path("x"), "m"),), both)
    average = average_line([unfair, replace(unfair, metric="cIM")], plan)
    assert average is not None
    assert not average.is_fair
    most.failed = many.failed = 1
    assert fair.is_fair
    few.failed, few.unscored = 0, 1  # one map claims no blue
    assert not TableLine("VOC/RN50", "blue true", 2, 2, {"Grad": few, "GC": most}, {}).is_fair


def test_a_table_in_the_papers_layout(plan: Path) -> None:
    parsed = read_plan(plan)
    run_plan(parsed, plan.parent / "s.sqlite", RunOptions())
    lines = table(parsed, plan.parent / "s.sqlite").splitlines()
    assert lines[0] == "| DB/Model | Metric | Grad | GC | Random |"
    assert [line.split(" | ")[1] for line in lines[2:5]] == ["IM", "IM, paper", "deletion"]
    assert lines[3] == "| VOC/RN50 | IM, paper | 0.30 | 0.51 |  |"
    for line in (lines[2], lines[4]):
        assert line.count("[") == 1
        assert line.count("**") == 4
    assert lines[6:] == [
        "- VOC/RN50, IM: 6 photos, 6 questions per method",
        "- VOC/RN50, deletion: 6 photos, 6 questions per method",
    ]


def test_missing_and_failed_cells_are_noted(plan: Path) -> None:
    parsed = read_plan(plan)
    (plan.parent / "photos" / "cat" / "0.png").write_bytes(b"no image")
    run_plan(parsed, plan.parent / "s.sqlite", RunOptions(shard=(0, 3)))
    text = table(parsed, plan.parent / "s.sqlite")
    assert "- VOC/RN50, IM, Grad, GC, Random: each 1 failed, 4 not computed yet\n" in text
    rows = list(csv.DictReader(io.StringIO(table(parsed, plan.parent / "s.sqlite", "csv"))))
    assert {row["label"] for row in rows} == {"Grad", "GC", "Random"}
    for row in rows:
        counts = [row[name] for name in ("count", "failed", "missing", "photos")]
        assert counts == ["1", "1", "4", "6"]


def test_rows_with_other_scoring_do_not_count(plan: Path) -> None:
    parsed = read_plan(plan)
    store = plan.parent / "s.sqlite"
    run_plan(parsed, store, RunOptions())
    plan.write_text(PLAN.replace("steps = 4", "steps = 5"))
    assert all(s.missing == 6 for line in table_lines(read_plan(plan), store) for s in _ours(line))


def _ours(line: TableLine) -> list[ScoreSummary]:
    return list(line.ours.values())


def test_one_method_under_two_settings(plan: Path) -> None:
    """Two columns of one method, each with its own maps; the plain entry's cells stay its own."""
    other = "{ name = 'gradcam', label = 'GC signed', settings = { signed = true } }"
    store = plan.parent / "s.sqlite"
    run_plan(read_plan(plan), store, RunOptions())
    plan.write_text(PLAN.replace('"random"', other))
    tally = run_plan(read_plan(plan), store, RunOptions())
    assert (tally.done, tally.kept) == (6, 12)
    line = table_lines(read_plan(plan), store)[0]
    assert line.means().keys() == {"Grad", "GC", "GC signed"}
    assert line.means()["GC"] != line.means()["GC signed"]


def test_reinitialisation_is_a_metric(plan: Path) -> None:
    """As the metric alone gives it, in the paper's layout."""
    text = PLAN.replace('["IM", "deletion"]', '["reinitialisation"]').replace(', "random"', "")
    plan.write_text('paper = "reinitialisation"\n' + text)
    parsed = read_plan(plan)
    store = plan.parent / "s.sqlite"
    run_plan(parsed, store, RunOptions(shard=(0, 6)))
    classifier = tiny()
    seen = classifier.preprocessing
    for row in Store(store).rows():
        inputs = seen.tensor(seen.view(read_photo(plan.parent / "photos" / row.cell.image)))
        method = methods()[row.cell.method]
        alone = metrics.reinitialisation(method, classifier.module, inputs, int(row.cell.target))
        assert row.scores["reinitialisation"] == pytest.approx(float(alone), abs=1e-3)
    lines = table(parsed, store).splitlines()
    assert lines[0] == "|  | VOC/RN50 |"
    assert [line.split(" | ")[0] for line in lines[2:4]] == ["| **Grad**", "| **GC**"]


LINES = [
    TableLine("VOC/RN50", "IM", 2, 4, {"GC": score(0.5, 0.7), "A": score(0.2)}, {"GC": 0.51}),
    TableLine(
        "VOC/RN50", "reinitialisation", 2, 4, {"GC": score(-0.5), "A": score(0.2)}, {"GC": 0.9}
    ),
]


def test_layouts() -> None:
    across = methods_across(LINES, ["GC", "A"])
    assert across.titles == ["DB/Model", "Metric", "GC", "A"]
    texts = [[text.text for text in row] for row in across.rows]
    assert texts[0] == ["VOC/RN50", "IM", "[0.600 ± 0.100]", "0.200"]
    assert texts[1] == ["VOC/RN50", "IM, paper", "0.51", ""]
    assert texts[2][2:] == ["-0.500", "[0.200]"]  # nearest to zero
    down = tasks_across(LINES[1:], ["GC", "A"])
    assert down.titles == ["", "VOC/RN50", "paper"]
    assert [text.text for text in down.rows[0]] == ["GC", "-0.500", "0.90"]
    assert [row[1].bold for row in down.rows] == [False, True]


def test_the_average_is_over_all_lines_of_those_that_have_them() -> None:
    lines = [
        TableLine("VOC/VGG", "IM", 2, 4, {"GC": score(0.5), "Grad": score(0.2)}, {}),
        TableLine("VOC/VGG", "cIM", 2, 4, {"GC": score(0.1), "Grad": ScoreSummary(missing=1)}, {}),
        TableLine("VOC/VGG", "deletion", 2, 4, {"GC": score(9.0), "Grad": score(9.0)}, {}),
    ]
    plan = Plan(
        (Task("VOC/VGG", "voc", Path("x"), "m"),),
        (make_variant("gradcam", {}), make_variant("gradient", {})),
    )
    average = average_line(lines, plan)
    assert average is not None
    assert average.means() == {"GC": pytest.approx(0.3)}
    assert average.paper == {}  # which is over other tasks too
    assert average_line(lines[:1], plan) is None
    assert "- Avg, Grad: not every line has a score yet" in as_markdown(lines, plan)
    assert "Avg" not in as_markdown(lines[:1], plan)


def test_lines_without_scores_say_why_and_are_not_averaged() -> None:
    lines = [
        TableLine("A", "IM", 2, 4, {"GC": score(0.5), "Grad": score(0.2)}, {}),
        TableLine("A", "cIM", 0, 0, {"GC": ScoreSummary(), "Grad": ScoreSummary()}, {}),
        TableLine("B", "IM", 2, 4, {"GC": score(0.3), "Grad": ScoreSummary(failed=4)}, {}),
        TableLine(
            "B",
            "pointing",
            2,
            4,
            {"GC": ScoreSummary(unscored=4), "Grad": ScoreSummary(unscored=4)},
            {},
        ),
    ]
    plan = Plan(
        (Task("A", "voc", Path("x"), "m"),),
        (make_variant("gradcam", {}), make_variant("gradient", {})),
    )
    average = average_line(lines, plan)
    assert average is not None
    assert average.means() == {"GC": pytest.approx(0.4)}
    said = as_markdown(lines, plan)
    assert '- B, pointing, GC, Grad: each 4 not scored, which takes fit = "squeeze"' in said
    assert "- Avg, Grad: not every line has a score\n" in said
    assert "- A, cIM: no photo shows two classes\n" in said


def test_nothing_is_marked_while_some_are_missing() -> None:
    lines = [TableLine("VOC/VGG", "IM", 2, 4, {"GC": score(0.5), "A": ScoreSummary(missing=1)}, {})]
    for layout in (methods_across(lines, ["GC", "A"]), tasks_across(lines, ["GC", "A"])):
        assert [text.text for row in layout.rows for text in row if "0.5" in text.text] == ["0.500"]
        assert not any(text.bold for row in layout.rows for text in row if "0.5" in text.text)


def test_the_best_by_metric() -> None:
    scores = {"a": 0.30001, "b": 0.3, "c": -0.1, "d": 0.2}
    assert rank_best("IM", scores) == {"a": 2, "b": 2, "d": 1}
    assert rank_best("deletion", scores) == {"c": 2, "d": 1}
    assert rank_best("deletion mean", scores) == {"c": 2, "d": 1}
    assert rank_best("blue claims", scores) == {}
    assert rank_best("reinitialisation", scores) == {"c": 2, "d": 1}


def test_the_papers_averages_are_of_its_lines() -> None:
    """Guards the figures against slips: the paper's own averages, to its two digits."""
    table = TABLES["comparison"]
    scores = table.scores()
    for method in table.methods:
        figures = [f for (task, _, m), f in scores.items() if m == method and task != "Avg"]
        assert sum(figures) / 6 == pytest.approx(scores["Avg", "", method], abs=0.0101)
    assert scores["INet/RN50", "IM", "DMBP^All"] == 0.56
    assert TABLES["ablation"].scores()["INet/RN50", "IM", "DMBP^All"] == 0.57


def test_latex_is_escaped(plan: Path) -> None:
    named = "{ name = 'dmbp_pos', label = 'DMBP⁺ 50%_a^~{|', settings = { iterations = 1 } }"
    plan.write_text(PLAN.replace('"random"', named))
    run_plan(read_plan(plan), plan.parent / "s.sqlite", RunOptions(shard=(0, 6)))
    latex = table(read_plan(plan), plan.parent / "s.sqlite", "latex")
    assert r"\textbf{DMBP$^+$ 50\%\_a\^{}\~{}\{|}" in latex
    assert r"50%_a^~{\|" in table(read_plan(plan), plan.parent / "s.sqlite")
    assert r"{\footnotesize VOC/RN50, IM, Grad, GC, DMBP$^+$ 50\%\_a\^{}\~{}\{|: each 5" in latex


COLOURS = '["IM zero", "deletion mean", "red true", "blue claims", "blue true"]'


def test_colours_and_other_substrates(plan: Path) -> None:
    """Rows hold what the metrics alone give; GradCAM claims no blue, so it has no blue truth."""
    plan.write_text(PLAN.replace('["IM", "deletion"]', COLOURS))
    parsed, store = read_plan(plan), plan.parent / "s.sqlite"
    run_plan(parsed, store, RunOptions())
    classifier = tiny()
    seen, options = classifier.preprocessing, {"activation": classifier.activation}
    for row in Store(store).rows():
        inputs = seen.tensor(seen.view(read_photo(plan.parent / "photos" / row.cell.image)))
        target = int(row.cell.target)
        maps = methods()[row.cell.method](classifier.module).attribute(inputs, target=target)
        about = (classifier.module, inputs, target, maps)
        removal = metrics.removal(*about, **options)
        expected = {
            "IM zero": float(metrics.insertion(*about, **options, steps=4, substrate="zero")),
            "deletion mean": float(metrics.deletion(*about, **options, steps=4, substrate="mean")),
            "red true": float(removal.red_true),
            "blue claims": float(removal.claims_blue),
        }
        if removal.claims_blue:
            expected["blue true"] = float(removal.blue_true)
        assert row.scores == pytest.approx(expected, abs=1e-5)
        assert ("blue true" in row.scores) == (row.cell.method != "gradcam")
    lines = {line.metric: line for line in table_lines(parsed, store)}
    assert lines["blue claims"].means() == {"Grad": 1.0, "GC": 0.0, "Random": 1.0}
    assert lines["blue true"].ours["GC"].unscored == 6
    assert lines["blue true"].ours["Grad"].mean.count == 6
    text = table(parsed, store)
    blue = {line.split(" | ")[1]: line for line in text.splitlines() if " | blue" in line}
    assert blue["blue true"].split(" | ")[3] == ""
    assert "**" not in blue["blue claims"]
    assert "- VOC/RN50, blue true, GC: 6 not scored, because the map claims no blue\n" in text
    files.export(Store(store), plan.parent / "rows.csv")
    exported = list(csv.DictReader((plan.parent / "rows.csv").read_text().splitlines()))
    assert {(row["method"], row["blue true"] == "") for row in exported} == {
        *(("gradient", False), ("gradcam", True), ("random", False))
    }


def test_every_metric_can_be_the_plotted_one(plan: Path) -> None:
    """All are computed in one run; a plan with another order of metrics computes nothing."""
    few = PLAN.replace(', "gradcam", "random"', "")
    plan.write_text(few.replace('["IM", "deletion"]', str(list(METRICS))))
    parsed, path = read_plan(plan), plan.parent / "s.sqlite"
    assert run_plan(parsed, path, RunOptions(shard=(0, 6))).done == 1
    store, plots = Store(path), list[TaskPlot]()
    for metric, spec in METRICS.items():
        task = replace(parsed.tasks[0], metrics=(metric,))
        found = files.task_plot(task, parsed, store)
        # The photos show one class and have no boxes.
        assert len(found.marks) == (spec.needs is None)
        assert all(bool(mark.curve) == (spec.curve is not None) for mark in found.marks)
        plots += [found] if found.marks else []
    labels = [axis.get_ylabel() for row in draw_benchmark(plots).subfigs for axis in row.axes]
    assert {METRICS[task.metric].axis for task in plots} <= set(labels)
    plan.write_text(few.replace('["IM", "deletion"]', '["cIM"]'))
    with pytest.raises(InputError, match="has no scores of this plan"):
        files.plot(read_plan(plan), path, plan.parent / "a.svg")


def test_every_metric_of_a_plan_can_be_scored() -> None:
    assert set(SCORERS) == set(METRICS)
