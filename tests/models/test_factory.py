"""Models from a user's own module, `package.module:factory`, and the errors for a wrong one."""

import sys
from pathlib import Path

import pytest
from torch import nn

from dmbp.errors import ModelError
from dmbp.models import load_model

FACTORY = """
from torch import nn
from dmbp.models import Classifier, Preprocessing
def plain(): return nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
def full(): return Classifier("mine", nn.Linear(2, 2), Preprocessing(32, 32), ("yes", "no"))
def wrong(): return "a string"
def broken(): raise KeyError("path")
def leaving(): raise SystemExit(3)
def stretched(): return Classifier("mine", nn.Linear(2, 2), Preprocessing(fit="stretch"))
def four(): return Classifier("mine", nn.Linear(2, 2), Preprocessing(mean=(0.5,) * 4))
def short(): return Classifier("mine", nn.Linear(2, 2), Preprocessing(std=(0.5,)))
number = 3
"""


def test_factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "her_models.py").write_text(FACTORY)
    (tmp_path / "her_bug.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert isinstance(load_model("her_models:plain").module, nn.Module)
    assert load_model("her_models:full").classes == ("yes", "no")
    for name, sentence in [
        ("her_models:wrong", "returned a str, not an nn.Module"),
        ("her_models:broken", "raised KeyError: 'path'"),
        ("her_models:leaving", "raised SystemExit: 3"),
        ("her_models:stretched", "there is no fit 'stretch'; there are crop, squeeze"),
        ("her_models:four", "three numbers each, or one each for grey, not 4 and 3"),
        ("her_models:short", "three numbers each, or one each for grey, not 3 and 1"),
        ("her_models:none", "has no function 'none'"),
        ("her_models:number", "has no function 'number'"),
        ("her_modls:plain", "cannot import 'her_modls'"),
        ("her_bug:plain", "raised ZeroDivisionError"),
        (":plain", "not of the form"),
        ("my_nets.py:plain", "names a file; write the module's name, my_nets:plain"),
        ("./my_nets.py:plain", "names a file; write the module's name, my_nets:plain"),
        ("./my_nets:plain", "names a file; write the module's name, my_nets:plain"),
        ("my/nets.py:plain", "write the module's name, my.nets:plain"),
        ("../my_nets.py:plain", "write the module's name in the folder .., my_nets:plain"),
    ]:
        with pytest.raises(ModelError, match=sentence):
            load_model(name)
