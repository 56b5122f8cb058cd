"""Disentangled masked backpropagation on a linear network."""

from dmbp.decompose.decompose import decompose
from dmbp.decompose.decomposer import Decomposer
from dmbp.decompose.decomposition import Decomposition, History, concatenate
from dmbp.decompose.reference import Reference
from dmbp.decompose.settings import PRESETS, Combine, Precision, Settings, chosen
from dmbp.decompose.storage import load

__all__ = [
    "PRESETS",
    "Combine",
    "Decomposer",
    "Decomposition",
    "History",
    "Precision",
    "Reference",
    "Settings",
    "chosen",
    "concatenate",
    "decompose",
    "load",
]
