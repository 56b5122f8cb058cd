"""Fixtures of the tests of attribution methods."""

import pytest
from torch import nn

from tests.attribution.networks import HookedNet


@pytest.fixture
def model() -> nn.Module:
    return HookedNet().double().eval()
