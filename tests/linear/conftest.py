"""Fixtures for tests of `dmbp.linear`."""

import os
from typing import Any

import pytest
import torch

from tests.conftest import SHARED_CACHE


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record every model that `torch.export` is called on; no graph is kept from another test."""
    if os.environ["DMBP_CACHE"] == SHARED_CACHE:
        monkeypatch.setenv("DMBP_CACHE", "off")
    exported: list[object] = []
    export = torch.export.export

    def recorded(model: object, *arguments: Any, **keywords: Any) -> Any:
        exported.append(model)
        return export(model, *arguments, **keywords)

    monkeypatch.setattr(torch.export, "export", recorded)
    return exported
