"""Fixtures for tests of capturing."""

import pytest


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture every network anew; tests of the cache name a folder of their own."""
    monkeypatch.setenv("DMBP_CACHE", "off")
