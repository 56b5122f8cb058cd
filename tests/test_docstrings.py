"""The examples in the modules' docstrings run and print what they say."""

import doctest
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import walk_packages

import pytest
import torch
from torch import nn

import dmbp

IMPORTABLE = [
    module.name
    for module in walk_packages(dmbp.__path__, "dmbp.")
    if find_spec("triton") is not None or not module.name.startswith("dmbp.engine.gpu.triton")
]
MODULES = [name for name in IMPORTABLE if ">>>" in (import_module(name).__doc__ or "")]


@pytest.mark.parametrize("name", ["dmbp", *MODULES])
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = import_module(name)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 5)).eval()
    names = {**vars(module), "dmbp": dmbp, "torch": torch}
    names |= {"model": model, "images": torch.randn(1, 3, 8, 8)}
    test = doctest.DocTestParser().get_doctest(module.__doc__ or "", names, name, None, 0)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0
