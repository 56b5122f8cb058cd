"""Runs of a plan: interrupted, sharded, merged, with broken photos; the table is the same."""

from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from dmbp.bench import Store
from dmbp.bench.plan import read_plan
from dmbp.bench.report.table import table
from dmbp.bench.run.driver import RunOptions, run_plan
from dmbp.cli import app
from dmbp.errors import DMBPError
from tests.bench.conftest import PLAN


def run(plan: Path, store: str, **options: object) -> str:
    """Run a plan whole; its table."""
    asked = read_plan(plan)
    run_plan(asked, plan.parent / store, RunOptions(**options))
    return table(asked, plan.parent / store)


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
    whole = run(plan, "whole.sqlite")
    for part in range(4):
        run(plan, f"{part}.sqlite", shard=(part, 4), batch=1 + part)
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


TWO = """
[[tasks]]
name = "other"
dataset = "folder"
path = "photos"
model = "resnet18"
weights = "nowhere.pt"
steps = 4
"""


def test_a_task_that_cannot_be_asked_is_left_out(plan: Path, tmp_path: Path) -> None:
    """The other is computed, its table drawn; a batch queue is told by the exit code."""
    whole = run(plan, "whole.sqlite")
    first, rest = PLAN.split("[[tasks]]")
    plan.write_text(first + TWO + "[[tasks]]" + rest)
    store, picture = tmp_path / "s.sqlite", tmp_path / "curves.png"

    def told(*arguments: object) -> str:
        found = CliRunner().invoke(app, ["bench", *map(str, arguments), "--store", str(store)])
        assert found.exit_code == (1 if arguments[0] == "run" else 0), found.output
        assert "note: the task 'other' is left out: " in found.stderr
        assert "nowhere.pt" in found.stderr
        return found.stdout

    assert "18 computed" in (said := told("run", plan))
    assert "1 of the plan's tasks left out" in said
    assert told("table", plan) == whole
    told("plot", plan, picture)
    assert picture.is_file()
    assert "18 of 36 left" in told("status", "--plan", plan)


def test_no_task_can_be_asked(plan: Path, tmp_path: Path) -> None:
    plan.write_text('methods = ["gradient"]\n' + TWO)
    arguments = ["bench", "run", str(plan), "--store", str(tmp_path / "s.sqlite")]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 2
    assert found.stderr.startswith("dmbp: ")
    assert "nowhere.pt" in found.stderr


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


def test_a_run_says_why_something_failed(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> object:
        raise RuntimeError("a kernel failed")

    monkeypatch.chdir(plan.parent)
    monkeypatch.setattr("dmbp.attribution.gradcam.GradCAM.attribute", never)
    said = CliRunner().invoke(app, ["bench", "run", "plan.toml"]).output
    assert "12 computed, 0 there already, 6 failed" in said
    assert "6 × a kernel failed" in said


def test_commands(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(plan.parent)
    runner = CliRunner()
    found = runner.invoke(app, ["bench", "run", "plan.toml"])
    assert found.exit_code == 0, found.output
    assert "18 computed, 0 there already, 0 failed" in found.output
    found = runner.invoke(app, ["bench", "status", "--plan", "plan.toml"])
    assert "voc160, folder, gradcam: 6 done" in found.output
    assert "plan.toml: 0 of 18 left" in found.output
    latex = runner.invoke(app, ["bench", "table", "plan.toml", "--format", "latex"]).output
    assert latex.startswith("\\begin{tabular}{ccccc}")
    assert "$\\pm$" in latex
    lines = runner.invoke(app, ["bench", "table", "plan.toml", "--format", "csv"]).output
    assert len(lines.splitlines()) == 1 + 2 * 3
    assert "18 rows → all.csv" in runner.invoke(app, ["bench", "export", "all.csv"]).output
    assert len((plan.parent / "all.csv").read_text().splitlines()) == 19


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("gradient", "gradiant"), "no method 'gradiant'; did you mean 'gradient'"),
        (('"IM"', '"MI"'), "there is no metric 'MI'"),
        (("voc160", "voc16"), "there is no model 'voc16'; did you mean 'voc160'"),
        (("photos", "foto"), "there is no folder or file"),
        (
            ("steps = 4", "steps = 0"),
            "'steps' of task 'VOC/RN50' in .*plan.toml must be a whole number from 1, not 0",
        ),
        (
            ("steps = 4", 'steps = "four"'),
            "'steps' of task 'VOC/RN50' in .* must be a whole number from 1, not 'four'",
        ),
        (("steps = 4", "colour = 4"), "task 'VOC/RN50' in .* takes no entry 'colour'"),
        (('name = "VOC/RN50"', ""), "task 1 in .* needs 'name'"),
        (("[[tasks]]", "[[task]]"), "the plan .* takes no entry 'task'; did you mean 'tasks'"),
        (("methods = [", "methods = "), "is not a plan"),
        (
            ("[[tasks]]", "[settings.gradcam]\nsize = 3\n[[tasks]]"),
            "gradcam in .* takes no setting 'size'",
        ),
        (
            ("[[tasks]]", "[settings]\ngradcam = 3\n[[tasks]]"),
            r"\[settings.gradcam\] in .* must be a table, not 3",
        ),
        (('"random"', '"gradcam"'), "two methods of the plan are called 'GC': give one a label"),
        (('"random"', "{ label = 'x' }"), "method 3 in .* needs 'name'"),
        (('"random"', "{ name = 'rise', size = 3 }"), "method 'rise' in .* takes no entry 'size'"),
        (
            ('"random"', "{ name = 'rise', label = 3 }"),
            "'label' of method 'rise' in .* must be a string, not 3",
        ),
        (
            ('"random"', "{ name = 'rise', settings = { maks = 3 } }"),
            "rise in .* takes no setting 'maks'; did you mean 'masks'",
        ),
        (("[[tasks]]", "paper = 'tables'\n[[tasks]]"), "no table of the paper 'tables'"),
        (('"IM"', '"IM", "IM"'), "task 'VOC/RN50' needs at least one metric, each once"),
        (
            ('"random"', "{ name = 'dmbp', settings = { iterations = -1 } }"),
            "settings of dmbp in .*: iterations must be",
        ),
        (
            ('"random"', "{ name = 'dmbp', settings = { iterations = 'x' } }"),
            "dmbp.iterations in .* must be a whole number, not 'x'",
        ),
    ],
)
def test_plans_that_are_not_right(plan: Path, change: tuple[str, str], said: str) -> None:
    plan.write_text(PLAN.replace(*change))
    with pytest.raises(DMBPError, match=said):
        run(plan, "s.sqlite")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["run", "nowhere.toml"], "cannot read the plan nowhere.toml: No such file"),
        (["run", "plan.toml", "--shard", "3/2"], "a shard is written as 1/4 to 4/4, not '3/2'"),
        (["run", "plan.toml", "--device", "gpu"], "there is no device 'gpu'; devices are cpu"),
        (["status"], "there is no file of results dmbp-bench.sqlite"),
        (["table", "plan.toml"], "there is no file of results"),
        (["merge", "nowhere.sqlite"], "there is no file of results nowhere.sqlite"),
    ],
)
def test_commands_that_are_not_right(
    plan: Path, given: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plan.parent)
    found = CliRunner().invoke(app, ["bench", *given])
    assert found.exit_code == 2
    assert said in " ".join(found.output.split())


def test_an_interrupted_run_says_how_to_go_on(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dmbp.bench.run.driver.run_plan", interrupted)
    found = CliRunner().invoke(app, ["bench", "run", str(plan)])
    assert found.exit_code == 130
    assert found.stderr == "dmbp: interrupted; the same command goes on with what is left\n"


def test_merging_says_how_much(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(plan.parent)
    run(plan, "part.sqlite", shard=(0, 6))
    found = CliRunner().invoke(app, ["bench", "merge", "part.sqlite", "--store", "whole.sqlite"])
    assert found.output == "3 rows added, 0 there already → whole.sqlite\n"
    found = CliRunner().invoke(app, ["bench", "merge", "part.sqlite", "--store", "whole.sqlite"])
    assert found.output == "0 rows added, 3 there already → whole.sqlite\n"


def test_trying_again_is_asked_for_as_the_run_was(
    plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plan.parent)
    (plan.parent / "photos" / "cat" / "0.png").write_bytes(b"no image")
    given = ["bench", "run", plan.name, "--store", "my part.sqlite", "--shard", "1/6"]
    found = CliRunner().invoke(app, given)
    again = "again: dmbp bench run plan.toml --store 'my part.sqlite' --shard 1/6 --retry\n"
    assert again in found.output


def test_labels_that_the_model_does_not_have(plan: Path) -> None:
    (plan.parent / "photos" / "dog").rename(plan.parent / "photos" / "wolf")
    with pytest.raises(DMBPError, match=r"wolf/1\.png is labelled 'wolf', no class of voc160"):
        run(plan, "s.sqlite")


DOUBLE = """
from dataclasses import replace
from dmbp.models import load_model

def make():
    found = load_model("voc160")
    return replace(found, name="double", module=found.module.double())
"""


def test_a_model_in_another_precision(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Photos are given to it as it computes: the table is that of single precision."""
    single = run(plan, "single.sqlite")
    (plan.parent / "in_double.py").write_text(DOUBLE)
    monkeypatch.chdir(plan.parent)
    plan.write_text(PLAN.replace("voc160", "in_double:make"))
    assert run(plan, "double.sqlite") == single
