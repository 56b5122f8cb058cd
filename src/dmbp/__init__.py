"""dmbp explains what an image classifier saw.

    >>> explainer = dmbp.DMBP(model)                       # any nn.Module
    >>> maps = explainer.attribute(images, target=3)       # positive speaks for the class
    >>> maps.shape == images.shape
    True

An implementation of "Generating Attribution Maps with Disentangled Masked Backpropagation"
(Ruiz, Agudo and Moreno-Noguer, ICCV 2021).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dmbp.decompose import Decomposition, Settings, load
from dmbp.errors import DMBPError
from dmbp.linear import LinearNetwork, linearize

if TYPE_CHECKING:
    from dmbp import metrics
    from dmbp.attribution import DMBP, explain_func, methods

__version__ = "0.1.0"

__all__ = [
    "DMBP",
    "DMBPError",
    "Decomposition",
    "LinearNetwork",
    "Settings",
    "__version__",
    "explain_func",
    "linearize",
    "load",
    "methods",
    "metrics",
]

# Imported when first asked for: the core needs torch alone, these need captum.
_LAZY = {
    "DMBP": "dmbp.attribution",
    "explain_func": "dmbp.attribution",
    "methods": "dmbp.attribution",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name == "metrics":
        return import_module("dmbp.metrics")
    raise AttributeError(f"module 'dmbp' has no attribute {name!r}")
