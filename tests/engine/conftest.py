"""Fixtures of the engine tests."""

from importlib.util import find_spec

import pytest

from tests.engine.backends import DEVICE


@pytest.fixture
def large_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each Triton program more elements: the interpreter's cost is per program."""
    if DEVICE == "cpu" and find_spec("triton") is not None:
        monkeypatch.setattr("dmbp.engine.gpu.triton.site.TILE_ELEMENTS", 1 << 14)
