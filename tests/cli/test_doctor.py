"""`dmbp doctor`: what it prints about models that work, and about those that are refused."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn
from typer.testing import Result

from dmbp.linear.rules.table import RULES
from dmbp.workflows.doctor import FROZEN, Diagnosis
from dmbp.workflows.examination import examine
from tests.cli.commands import NETWORKS, run


def doctor(*arguments: str) -> Result:
    return run("doctor", *arguments)


def test_every_kind_of_rule_is_explained() -> None:
    assert set(FROZEN) == {rule.kind for rule in RULES.values()} - {"decision"}


def test_a_model_that_works() -> None:
    result = doctor(f"{NETWORKS}:good", "--size", "20")
    assert result.exit_code == 0, result.output
    for words in ("its own weights, float32 input 1×3×20×20", "gate 1", "relu", "1×4×18×18"):
        assert words in result.output
    assert "cpu: float32 on cpu" in result.output


def test_json() -> None:
    result = doctor(f"{NETWORKS}:good", "--size", "20", "--json")
    record = json.loads(result.output)
    assert record["input"] == [1, 3, 20, 20]
    assert record["operations"]["gate"] == {"aten.relu.default": 1}
    assert record["sites"][0] == {"name": "1", "operation": "relu", "shape": [1, 4, 18, 18]}
    assert record["learning"]["mask_elements"] == math.prod([1, 4, 18, 18])
    assert set(record["learning"]["memory"] or {}) in ({"bytes", "what"}, set())
    assert record["exactness"] <= record["tolerance"]


def test_how_photos_are_prepared() -> None:
    options = ("--size", "20x30", "--scale", "255", "--channels", "bgr", "--mean", "104,117,123")
    result = doctor(f"{NETWORKS}:good", *options, "--fit", "squeeze")
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    for line in (
        "size 20×30 (height×width) the options",
        "fit squeeze the options",
        "mean 104, 117, 123 the options",
        "std 1, 1, 1 the options",
        "scale pixels from 0 to 255 the options",
        "channels bgr the options",
        "interpolation bilinear the model's own",
    ):
        assert line in lines
    assert "float32 input 1×3×20×30" in result.output
    assert "mean 0.485, 0.456, 0.406 assumed: ImageNet's" in " ".join(
        doctor(f"{NETWORKS}:star", "--size", "20").output.split()
    )


def test_the_sample_photo(monkeypatch: pytest.MonkeyPatch) -> None:
    record = json.loads(doctor("voc160", "--json").output)
    assert record["preprocessing"]["crop"] == 160
    assert record["sample"]["cat"][0]["name"] == "cat"
    assert record["sample"]["cat"][0]["probability"] > 0.9
    assert "sample photo, a cat: cat (9" in doctor("voc160").output
    wrong = json.loads(doctor("voc160", "--scale", "255", "--json").output)
    assert wrong["origins"]["std"] == "the options"
    assert wrong["sample"]["cat"] != record["sample"]["cat"]
    untrained = doctor("resnet18", "--size", "32")
    assert "sample photo, a cat: not shown, the weights are random" in untrained.output
    segmenter = doctor(f"{NETWORKS}:segmenter")
    assert segmenter.exit_code == 0
    assert "sample photo, a cat: predicted areas: class" in segmenter.output
    assert "outputs of 4×222×222, of which the largest, (" in segmenter.output
    monkeypatch.setitem(sys.modules, "skimage.data", None)
    assert "a cat: the sample photos come from scikit-image" in doctor("voc160").output


def test_classes_of_the_sample_photo(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("red\ngreen\nblue\n")
    result = doctor(f"{NETWORKS}:star", "--size", "20", "--classes", str(tmp_path / "names.txt"))
    assert {"red", "green", "blue"} <= set(result.output.split())


def test_many_sites_are_cut_short_unless_asked_for() -> None:
    short, whole = (
        doctor("resnet18", "--size", "32", *more).output for more in ([], ["--all-sites"])
    )
    assert "random weights" in short
    assert "17 sites" in short
    assert "… 12 more" in short
    assert "layer2.0.relu:2" not in short
    assert "layer2.0.relu:2" in whole


def test_lines_and_sites_may_be_chosen() -> None:
    chosen = json.loads(
        doctor("resnet18", "--size", "32", "--sites", "layer4*", "--sites", "relu", "--json").output
    )
    names = [site["name"] for site in chosen["sites"]]
    assert names[0] == "relu"
    assert len(names) == 5
    assert all(name.startswith("layer4") for name in names[1:])
    wrong = doctor("resnet18", "--size", "32", "--sites", "layr4*")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "no site 'layr4*'; did you mean 'layer4*'" in wrong.stderr
    assert "'secant'?" in doctor("resnet18", "--smooth", "secants").stderr


def test_a_network_of_one_channel() -> None:
    record = json.loads(doctor(f"{NETWORKS}:grey", "--size", "16", "--json").output)
    assert record["input"] == [1, 1, 16, 16]
    assert record["exactness"] <= 1e-4


def test_a_refusal_names_operation_module_and_remedy() -> None:
    result = doctor(f"{NETWORKS}:spectral")
    assert result.exit_code == 2
    lines = [line.split(maxsplit=1) for line in result.output.splitlines() if line]
    told = {line[0]: line[1] for line in lines if len(line) == 2}
    assert told["operation"] == "aten.fft_rfft2.default"
    assert told["module"] == "2"
    assert told["suggestion"].startswith("a Fourier transform is linear")
    record = json.loads(doctor(f"{NETWORKS}:spectral", "--json").output)
    (refused,) = record["refusal"]["operations"]
    assert refused["operation"] == "aten.fft_rfft2.default"
    assert "dmbp doctor" not in record["refusal"]["message"]


def test_a_fault_in_many_places_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    layers = [layer for _ in range(8) for layer in (nn.Conv2d(3, 3, 1), nn.Dropout())]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images = torch.randn(2, 3, 8, 8)
    found = examine(torch.export.export(model.train(), (images,)), images)
    Diagnosis("net", "random", found).show(Console(width=200))
    told = capsys.readouterr().out
    assert "8 operations of the model cannot be frozen" in told
    assert told.count("suggestion") == told.count("operation    ") == 1
    assert "modules      1, 3, 5, … 3 more, 13, 15\n" in told


def test_memory_that_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmbp.process.CLEAR_REFS", Path("/nowhere/clear_refs"))
    result = doctor(f"{NETWORKS}:good", "--size", "20")
    assert "memory       not measured on this system" in result.output


def test_torch_says_nothing_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    """Where an export fails, torch prints the whole graph."""
    result = doctor(f"{NETWORKS}:branching")
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert "forward() decides by the values of a tensor at networks.py, line" in said
    assert result.stderr == ""
    assert capfd.readouterr().err == ""


def test_other_refusals() -> None:
    affine = doctor(f"{NETWORKS}:affine", "--size", "8")
    assert affine.exit_code == 0
    assert "the model is affine" in affine.output
    unknown = doctor("resnet500")
    assert unknown.exit_code == 2
    assert "did you mean 'resnet50'" in unknown.stderr
