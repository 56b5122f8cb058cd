"""Disentangled masked backpropagation on a linear network."""

from dmbp.baseline import Baseline
from dmbp.decompose.decomposer import Decomposer
from dmbp.decompose.decomposition import Decomposition, History, concatenate, load
from dmbp.decompose.learn import decompose
from dmbp.decompose.settings import PRESETS, Combine, Precision, Settings, resolve_settings

__all__ = [
    "PRESETS",
    "Baseline",
    "Combine",
    "Decomposer",
    "Decomposition",
    "History",
    "Precision",
    "Settings",
    "concatenate",
    "decompose",
    "load",
    "resolve_settings",
]
