"""The demonstration: pictures appear, and the evidence is where it should be."""

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor

import dmbp
from dmbp.attribution import parse_method_names
from dmbp.cli.demo import COMPARED
from dmbp.data import sample_photos
from dmbp.models import DEFAULT, load_model
from tests.cli.commands import run

ON_ITS_OWN_HALF = 0.9


@pytest.mark.slow
def test_pictures_of_every_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_method_names(COMPARED)
    monkeypatch.setattr(
        import_module("dmbp.cli.demo"), "COMPARED", "gradient,random"
    )  # the others take seconds
    done = run("demo", "--out", str(tmp_path / "demo"))
    assert done.exit_code == 0, done.output
    names = sorted(path.name for path in (tmp_path / "demo").glob("*.png"))
    assert names == [
        "astronaut.png",
        "cat.png",
        "collage-insertion.png",
        "collage-methods.png",
        "collage.png",
        "motorcycle.png",
    ]
    assert (tmp_path / "demo" / "report.html").stat().st_size > 100_000
    assert str(tmp_path / "demo") in done.output
    assert "dmbp explain PHOTO" in done.output


def test_evidence_is_where_it_should_be() -> None:
    """Red on the cat for "cat", on the person for "person"; the cat speaks against "person"."""
    classifier = load_model(DEFAULT)
    photo, classes = sample_photos()["collage"]
    inputs = classifier.preprocessing.tensor(classifier.preprocessing.view(photo))
    targets = [classifier.class_index(name, torch.zeros(20)) for name in classes]
    d = dmbp.DMBP(classifier.module).explain(inputs, target=targets)
    cat, person = d.attribution.sum(1)
    left, right = slice(0, 80), slice(80, 160)
    assert _share(cat.clamp(min=0), left) >= ON_ITS_OWN_HALF
    assert _share(person.clamp(min=0), right) >= ON_ITS_OWN_HALF
    assert _share(person.clamp(max=0), left) >= ON_ITS_OWN_HALF


def _share(attribution: Tensor, columns: slice) -> float:
    return float(attribution[:, columns].sum() / attribution.sum())


def test_without_scikit_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "skimage.data", None)
    done = run("demo", "--out", str(tmp_path))
    assert done.exit_code == 2
    assert "pip install 'dmbp[demo]'" in done.stderr


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("")
    done = run("demo", "--out", str(tmp_path / "demo"))
    assert done.exit_code == 2
    assert "it is a file" in done.stderr
