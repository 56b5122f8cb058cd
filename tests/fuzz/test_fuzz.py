"""Hostile input ends in a sentence, and the fuzzer would notice if it did not.

`python -m benchmarks.fuzz --tries 5000` tries more.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import judge as judging
from tests.fuzz.case import MARK, Stock
from tests.fuzz.command_lines import ORDINARY, declared
from tests.fuzz.damage import BYTE_DAMAGE, damaged_bytes, damaged_tree
from tests.fuzz.judge import Ended, judge, listed
from tests.fuzz.pool import KINDS, Fuzzer, draw_kind, make_case

SEED = 11
TRIES = 30


@pytest.fixture(scope="module")
def fuzzer() -> Iterator[Fuzzer]:
    with Fuzzer(SEED) as fuzzer:
        yield fuzzer


def test_hostile_input_ends_in_a_sentence(fuzzer: Fuzzer) -> None:
    outcomes = list(fuzzer.outcomes(range(TRIES)))
    assert len(outcomes) == TRIES
    assert {outcome.kind for outcome in outcomes} == set(KINDS)
    wrong = [(outcome.index, outcome.arguments, outcome.problems) for outcome in outcomes]
    assert not [entry for entry in wrong if entry[-1]]
    assert {outcome.ended.code for outcome in outcomes} >= {0, 2}  # some inputs are right


def test_a_try_that_hangs_is_killed_and_named(
    fuzzer: Fuzzer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within no time at all, every try hangs, for its worker has to start first."""
    monkeypatch.setattr(fuzzer, "_workers", [])
    monkeypatch.setattr(fuzzer, "seconds", 0.0)
    started = time.monotonic()
    (outcome,) = fuzzer.outcomes([3])
    assert [name for name, _ in outcome.problems] == [judging.HANG]
    assert outcome.arguments
    assert time.monotonic() - started < 30


def contents(folder: Path) -> dict[str, bytes | str]:
    """Return the files in a folder, without reading pipes and devices."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else "special"
        for path in folder.rglob("*")
        if not path.is_symlink() and (path.is_dir() or path.stat().st_size < 2**30)
    }


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_try_is_determined_by_seed_and_index(fuzzer: Fuzzer, tmp_path: Path) -> None:
    """Archives hold the time at which they were written, so kinds with archives are left out."""
    archives = ("model files", "weights", "results files", "arrays", "folders")
    for index in range(40):
        folders = [tmp_path / f"{index}-{copy}" for copy in range(2)]
        for folder in folders:
            folder.mkdir()
        first, second = (make_case(SEED, index, folder, fuzzer.stock) for folder in folders)
        assert first == second
        if draw_kind(SEED, index)[1] not in archives:
            assert contents(folders[0]) == contents(folders[1])


def test_every_option_of_every_command_is_tried() -> None:
    assert {option.name for option in declared("compare")} >= {"--set", "--methods", "--model"}
    assert {option.name for option in declared("boxes")} >= {"--prompt", "--hold", "--model"}
    assert {option.name for option in declared("doctor")} >= {"--json", "--size"}
    assert {option.name for option in declared("bench run")} >= {"--workers", "--ray", "--store"}
    assert [command for command in ORDINARY if not declared(command)] == ["models", "methods"]


@pytest.mark.parametrize("name", BYTE_DAMAGE)
def test_damage_changes_bytes(name: str) -> None:
    content = bytes(range(200))
    found = [BYTE_DAMAGE[name](Random(seed), content) for seed in range(20)]
    assert any(changed != content for changed in found)
    assert damaged_bytes(Random(0), b"")[0] is not None


def test_damage_changes_trees() -> None:
    tree = {"a": [1, {"b": 2}], "c": "d"}
    assert sum(damaged_tree(Random(seed), tree) != tree for seed in range(20)) > 15
    assert tree == {"a": [1, {"b": 2}], "c": "d"}


SENTENCE = "dmbp: there is no file a.jpg\n"
USAGE = "Usage: dmbp explain\n\nError: Missing argument 'photos'.\n"

ENDINGS: dict[str, tuple[list[str], Ended, list[str]]] = {
    "a sentence": (["explain"], Ended(2, "", SENTENCE), []),
    "a note before it": (["explain"], Ended(2, "", f"note: x\n{SENTENCE}"), []),
    "usage": (["explain"], Ended(2, "", USAGE), []),
    "a refusal": (["doctor"], Ended(2, "cannot be frozen", ""), []),
    "failures": (["bench", "run"], Ended(1, "", ""), []),
    "an exception": (["explain"], Ended(1, "", "", "ValueError"), [judging.TRACEBACK]),
    "a printed traceback": (
        ["explain"],
        Ended(2, "", "Traceback (most recent call last):\n"),
        [judging.TRACEBACK],
    ),
    "a bug": (["explain"], Ended(1, "", "dmbp: this is a bug in dmbp, …\n"), [judging.BUG]),
    "memory": (["doctor"], Ended(2, "", "dmbp: there is not enough memory: …"), [judging.MEMORY]),
    "no words": (["explain"], Ended(2, "", ""), [judging.WORDS]),
    "two sentences": (["explain"], Ended(2, "", SENTENCE * 2), [judging.WORDS]),
    "a library's line": (["models"], Ended(0, "x", "ZIPDecode: error\n"), [judging.WORDS]),
    "another code": (["models"], Ended(130, "", SENTENCE), [judging.EXIT_CODE]),
    "1 without failures": (["explain"], Ended(1, "", ""), [judging.EXIT_CODE]),
    "0 without files": (["explain"], Ended(0, "", ""), [judging.EXIT_CODE]),
    "0 without output": (["doctor"], Ended(0, "", ""), [judging.EXIT_CODE]),
    "0 without a store": (["bench", "run"], Ended(0, "", ""), [judging.EXIT_CODE]),
}


@pytest.mark.parametrize("case", ENDINGS)
def test_what_is_wrong_with_an_ending(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, ended, problems = ENDINGS[case]
    assert [name for name, _ in judge(arguments, ended, tmp_path, {})] == problems


def test_what_is_wrong_with_files(tmp_path: Path) -> None:
    (tmp_path / "old.png").write_bytes(b"not a picture")
    before = listed(tmp_path)
    (tmp_path / "new.png").write_bytes(b"not a picture")
    (tmp_path / "new.json").write_text("{")
    (tmp_path / ".a.json.part").write_text("{}")
    (tmp_path / "report.html").write_text("<html>")
    (tmp_path / MARK).touch()
    found = judge(["models"], Ended(0, "x", ""), tmp_path, before)
    broken = sorted(why.partition(":")[0] for name, why in found if name == judging.HALF_WRITTEN)
    assert broken == [".a.json.part", "new.json", "new.png", "report.html"]
    assert (judging.EXECUTED, MARK) in found


def test_what_a_command_and_its_libraries_print(tmp_path: Path) -> None:
    ended = judging.run_command(["models"], tmp_path)
    assert (ended.code, ended.exception) == (0, "")
    assert ended.err.strip().startswith("besides these names")
    assert "resnet50\n" in ended.out
    assert judging.run_command(["nosuch"], tmp_path).code == 2


def test_ordinary_files_work(
    fuzzer: Fuzzer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or every try would be refused for another reason than the one it is about."""
    monkeypatch.chdir(tmp_path)
    stock: Stock = fuzzer.stock
    photo = str(stock.path("photo.png"))
    for model in ("net.pt2", "dynamic.onnx"):
        arguments = ["compare", photo, "--methods", "gradient", "--model", str(stock.path(model))]
        assert judging.run_command(arguments, tmp_path).code == 0
    plan = [str(stock.path("plan.toml")), "--store", str(stock.path("store.sqlite"))]
    ended = judging.run_command(["bench", "table", *plan], tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert os.listdir(tmp_path / "dmbp-out")
