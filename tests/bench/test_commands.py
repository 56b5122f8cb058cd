"""`dmbp bench` on the command line: what it prints, writes and returns."""

import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dmbp.bench.failures import group_alike
from dmbp.cli import app
from tests.bench.conftest import PLAN
from tests.bench.tiny import run_to_table


def test_commands(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(plan.parent)
    runner = CliRunner()
    found = runner.invoke(app, ["bench", "run", "plan.toml"])
    assert found.exit_code == 0, found.output
    assert "18 computed, 0 already stored, 0 failed" in found.output
    found = runner.invoke(app, ["bench", "status", "--plan", "plan.toml"])
    assert "tests.bench.tiny:tiny, folder, gradcam (GC): 6 done" in found.output
    assert "plan.toml: 0 of 18 left" in found.output
    latex = runner.invoke(app, ["bench", "table", "plan.toml", "--format", "latex"]).output
    assert latex.startswith("\\begin{tabular}{ccccc}")
    assert "$\\pm$" in latex
    lines = runner.invoke(app, ["bench", "table", "plan.toml", "--format", "csv"]).output
    assert len(lines.splitlines()) == 1 + 2 * 3
    assert "18 rows → all.csv" in runner.invoke(app, ["bench", "export", "all.csv"]).output
    assert len((plan.parent / "all.csv").read_text().splitlines()) == 19


def test_a_run_says_why_something_failed(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> object:
        raise RuntimeError("a kernel failed")

    monkeypatch.chdir(plan.parent)
    monkeypatch.setattr("dmbp.attribution.gradcam.GradCAM.attribute", never)
    said = CliRunner().invoke(app, ["bench", "run", "plan.toml"]).output
    assert "12 computed, 0 already stored, 6 failed" in said
    assert "6 × a kernel failed" in said


def test_failures_that_differ_in_numbers_are_one_line(
    plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter(range(1, 9))

    def never(*_: object, **__: object) -> object:
        raise RuntimeError(f"layer4.1 of 0{next(numbers) % 2}.png is off by {next(numbers)}e-01")

    monkeypatch.chdir(plan.parent)
    monkeypatch.setattr("dmbp.attribution.gradcam.GradCAM.attribute", never)
    for command in (["run", "plan.toml", "--batch", "1", "--shard", "1/3"], ["status"]):
        said = CliRunner().invoke(app, ["bench", *command]).output
        assert "2 × layer4.1 of 01.png is off by 2e-01 (2 messages differ only in numbers)" in said
        assert "4e-01" not in said


def test_numbers_in_names_tell_failures_apart() -> None:
    messages = ["1.png is bad", "2.png is bad", "photos/1 is bad", "2007_01 is bad", "conv1 is bad"]
    failures = [(message, 1) for message in messages]
    assert [group.example for group in group_alike(failures)] == messages
    alike = group_alike([("no photo", 3), ("(3, 224) at -1.5", 2), ("(1, 28) at 2E+4", 2)])
    assert [str(group) for group in alike] == [
        "4 × (3, 224) at -1.5 (2 messages differ only in numbers)",
        "3 × no photo",
    ]


TWO = """
[[tasks]]
name = "other"
dataset = "folder"
path = "photos"
model = "resnet18"
weights = "nowhere.pt"
steps = 4
"""


def test_a_task_that_cannot_run_is_left_out(plan: Path, tmp_path: Path) -> None:
    """The other is computed, its table drawn; the exit code says so to a batch queue."""
    whole = run_to_table(plan, "whole.sqlite")
    first, rest = PLAN.split("[[tasks]]")
    plan.write_text(first + TWO + "[[tasks]]" + rest)
    store, picture = tmp_path / "s.sqlite", tmp_path / "curves.png"

    def run_command(*arguments: object) -> str:
        found = CliRunner().invoke(app, ["bench", *map(str, arguments), "--store", str(store)])
        assert found.exit_code == (1 if arguments[0] == "run" else 0), found.output
        assert "note: the task 'other' is left out: " in found.stderr
        assert "nowhere.pt" in found.stderr
        return found.stdout

    assert "18 computed" in (said := run_command("run", plan))
    assert "1 of the plan's tasks left out" in said
    assert run_command("table", plan) == whole
    run_command("plot", plan, picture)
    assert picture.is_file()
    assert "18 of 36 left" in run_command("status", "--plan", plan)


def test_no_task_can_run(plan: Path, tmp_path: Path) -> None:
    plan.write_text('methods = ["gradient"]\n' + TWO)
    arguments = ["bench", "run", str(plan), "--store", str(tmp_path / "s.sqlite")]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 2
    assert found.stderr.startswith("dmbp: ")
    assert "nowhere.pt" in found.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["run", "nowhere.toml"], "there is no plan nowhere.toml"),
        (["run", "plan.toml", "--shard", "3/2"], "a shard is written as 1/4 to 4/4, not '3/2'"),
        (
            ["run", "plan.toml", "--device", "gpu"],
            "there is no device 'gpu'; devices are auto",
        ),
        (["status"], "there is no file of results dmbp-bench.sqlite"),
        (["table", "plan.toml"], "there is no file of results"),
        (["merge", "nowhere.sqlite"], "there is no file of results nowhere.sqlite"),
    ],
)
def test_wrong_arguments_get_one_sentence(
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
    assert found.stderr == "dmbp: interrupted; the same command continues with what is left\n"


def test_merging_says_how_much(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(plan.parent)
    run_to_table(plan, "part.sqlite", shard=(0, 6))
    found = CliRunner().invoke(app, ["bench", "merge", "part.sqlite", "--store", "whole.sqlite"])
    assert found.output == "3 rows added, 0 already stored → whole.sqlite\n"
    found = CliRunner().invoke(app, ["bench", "merge", "part.sqlite", "--store", "whole.sqlite"])
    assert found.output == "0 rows added, 3 already stored → whole.sqlite\n"


def test_the_command_to_retry_is_that_of_the_run(
    plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plan.parent)
    (plan.parent / "photos" / "cat" / "0.png").write_bytes(b"no image")
    given = ["bench", "run", plan.name, "--store", "my part.sqlite", "--shard", "1/6"]
    found = CliRunner().invoke(app, given)
    again = "again: dmbp bench run plan.toml --store 'my part.sqlite' --shard 1/6 --retry\n"
    assert again in found.output


def test_damaged_rows_are_listed_left_out_and_computed_again(
    plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plan.parent)
    whole = run_to_table(plan, "s.sqlite")
    with sqlite3.connect("s.sqlite") as connection:
        connection.execute("UPDATE rows SET scores = '{' WHERE image = 'cat/2.png'")
        connection.execute(
            "UPDATE rows SET key = 'lost' WHERE image = 'dog/1.png' AND method = 'random'"
        )
    connection.close()

    def run_command(*words: str) -> tuple[str, str]:
        found = CliRunner().invoke(app, ["bench", *words, "--store", "s.sqlite"])
        assert found.exit_code == 0, found.output
        return found.stdout, found.stderr

    said, _ = run_command("status", "--plan", "plan.toml")
    assert "tests.bench.tiny:tiny, folder, gradcam (GC): 5 done\n" in said
    assert "(gradcam, cat/2.png, class 0) is damaged: 'scores' is not JSON\n" in said
    assert "the row lost (random, dog/1.png, class 1) is damaged: its key is not" in said
    assert "plan.toml: 4 of 18 left" in said
    said, note = run_command("table", "plan.toml")
    assert "not computed yet" in said
    assert "note: damaged rows of s.sqlite count as missing: the row " in note
    run_command("plot", "plan.toml", "a.png")
    assert "14 rows → a.csv" in run_command("export", "a.csv")[0]
    assert "4 computed, 14 already stored, 0 failed" in run_command("run", "plan.toml")[0]
    assert run_command("table", "plan.toml") == (whole, "")
    assert run_command("repair")[0] == "1 damaged rows removed → s.sqlite\n"
    assert "damaged" not in run_command("status")[0]
    assert "18 rows → a.csv" in run_command("export", "a.csv")[0]
