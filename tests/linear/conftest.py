"""Fixtures for tests of `dmbp.linear`."""

from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture every network anew."""
    monkeypatch.setenv("DMBP_CACHE", "off")


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record every model that `torch.export` is called on."""
    exported: list[object] = []
    export = torch.export.export

    def recorded(model: object, *arguments: Any, **keywords: Any) -> Any:
        exported.append(model)
        return export(model, *arguments, **keywords)

    monkeypatch.setattr(torch.export, "export", recorded)
    return exported
