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

if TYPE_CHECKING:
    from dmbp import metrics
    from dmbp.attribution import DMBP, explain_func, methods
    from dmbp.decompose import Decomposition, Settings, load
    from dmbp.errors import DMBPError
    from dmbp.linear import LinearNetwork, Pieces, linearize

__version__ = "0.1.0"

__all__ = [
    "DMBP",
    "DMBPError",
    "Decomposition",
    "LinearNetwork",
    "Pieces",
    "Settings",
    "__version__",
    "explain_func",
    "linearize",
    "load",
    "methods",
    "metrics",
]

# Imported when first asked for: the core needs torch alone, methods need captum, and a command
# that only lists names needs neither.
_HOMES = {
    "DMBP": "dmbp.attribution",
    "DMBPError": "dmbp.errors",
    "Decomposition": "dmbp.decompose",
    "LinearNetwork": "dmbp.linear",
    "Pieces": "dmbp.linear",
    "Settings": "dmbp.decompose",
    "explain_func": "dmbp.attribution",
    "linearize": "dmbp.linear",
    "load": "dmbp.decompose",
    "methods": "dmbp.attribution",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in ("errors", "linear", "metrics", "models", "render"):
        return import_module(f"dmbp.{name}")
    raise AttributeError(f"module 'dmbp' has no attribute {name!r}")
