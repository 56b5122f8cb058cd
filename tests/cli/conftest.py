"""A folder to run commands in."""

from pathlib import Path

import numpy
import pytest
from PIL import Image


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with one photo in two formats."""
    noise = numpy.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=numpy.uint8)
    Image.fromarray(noise).save(tmp_path / "photo.jpg")
    Image.fromarray(noise).convert("L").save(tmp_path / "photo.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path
