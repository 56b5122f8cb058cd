"""Fixtures: a seed for every test, and the shared folder of real weights and photographs."""

from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def shared() -> Path:
    """The folder with real weights and photographs, beside the repository."""
    if not (SHARED / "models").is_dir():
        pytest.skip("needs the real weights and photographs in ../shared")
    return SHARED
