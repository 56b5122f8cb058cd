"""Fixtures: a seed for every test, and the shared folder of real weights and photographs."""

import os
import tempfile
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():  # kernels are interpreted; read when Triton is first imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

if "PYTEST_XDIST_WORKER" not in os.environ:
    # All processes of a run share what they have captured; tests of capturing itself do not.
    CACHE = tempfile.TemporaryDirectory(prefix="dmbp-tests-")
    os.environ["DMBP_CACHE"] = CACHE.name
SHARED_CACHE = os.environ["DMBP_CACHE"]

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
