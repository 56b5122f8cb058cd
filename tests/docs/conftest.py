"""Explanations of the documentation's code are cheap: what is tested is that it runs."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from dmbp.decompose import settings
from dmbp.models.torchvision_models import import_torchvision
from tests.docs.pages import DOCS

collect_ignore_glob = [] if DOCS.is_dir() else ["test_*.py"]
"""A source distribution is without the documentation."""


@pytest.fixture
def cheap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to run in, presets of few steps, one thread, and no window that opens."""
    import_torchvision()  # before Lightning does, which fails with a CPU build of torch
    monkeypatch.chdir(tmp_path)
    presets = {name: replace(value, iterations=1) for name, value in settings.PRESETS.items()}
    test = replace(presets["tested"].test, window=0.5, mixtures=2, contexts=1)
    presets["tested"] = replace(presets["tested"], test=test)
    monkeypatch.setattr(settings, "PRESETS", presets)
    monkeypatch.setattr(Image.Image, "show", lambda _: None)
    monkeypatch.setenv("DISPLAY", ":0")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(threads)
