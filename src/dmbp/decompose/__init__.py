"""Disentangled masked backpropagation: learns the masks and reads the decomposition out.

- `settings`: the presets and objectives;
- `learn`: initial masks, learning and read-out for one linear network (Algorithm 1);
- `decomposer`: explains questions one after the other; on GPUs it replays them as CUDA graphs;
- `decomposition`: the result, its attributions, and how it is saved.
"""

from dmbp.baseline import Baseline
from dmbp.decompose.decomposer import Decomposer
from dmbp.decompose.decomposition import Decomposition, History, concatenate, load
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
    "load",
    "resolve_settings",
]
