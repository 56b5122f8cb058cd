"""Disentangled masked backpropagation: learns the masks and reads the decomposition out.

- `settings`: the presets and objectives;
- `learn`: initial masks, learning and read-out for one linear network (Algorithm 1);
- `decomposer`: explains questions one after the other; on GPUs it replays them as CUDA graphs;
- `decomposition`: the result, its attributions, and how it is saved;
- `tested`: asks the model whether the colours of a map are true. `windows` cover the input,
  `removal` runs the model on images without some pixels, `places` are what it says about them,
  `mixtures` are gradients in partly removed images, and `details` spread worth over pixels;
- `tester`: does so for questions one after the other; on GPUs it replays them as CUDA graphs.
"""

from dmbp.baseline import Baseline
from dmbp.decompose.decomposer import Decomposer
from dmbp.decompose.decomposition import Decomposition, History, concatenate, load
from dmbp.decompose.settings import (
    DEFAULT_PRESET,
    PRESETS,
    Combine,
    Precision,
    Removal,
    Settings,
    WindowTest,
    resolve_settings,
)
from dmbp.decompose.tested import Tested
from dmbp.decompose.tester import ColourTester

__all__ = [
    "DEFAULT_PRESET",
    "PRESETS",
    "Baseline",
    "ColourTester",
    "Combine",
    "Decomposer",
    "Decomposition",
    "History",
    "Precision",
    "Removal",
    "Settings",
    "Tested",
    "WindowTest",
    "concatenate",
    "load",
    "resolve_settings",
]
