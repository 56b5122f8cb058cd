"""Networks for inputs that are no photos, loaded by name: `tests.fuzz.networks:volumes`."""

import torch
from torch import nn

BANDS = 10
CHANNELS = 2
FEATURES = 5


def _network(first: nn.Module, pool: nn.Module, width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(first, nn.ReLU(), pool, nn.Flatten(), nn.Linear(width, 3))


def volumes() -> nn.Module:
    return _network(nn.Conv3d(1, 2, 3, stride=2), nn.AdaptiveAvgPool3d(1), 2)


def signals() -> nn.Module:
    return _network(nn.Conv1d(CHANNELS, 4, 3), nn.AdaptiveAvgPool1d(2), 8)


def tables() -> nn.Module:
    return _network(nn.Linear(FEATURES, 4), nn.Identity(), 4)


def bands() -> nn.Module:
    return _network(nn.Conv2d(BANDS, 4, 3), nn.AdaptiveAvgPool2d(2), 16)
