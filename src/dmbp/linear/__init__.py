"""A network as an affine map: capture, freezing at x, and the linear network itself."""

from dmbp.linear.linearize import Linearizer, linearize
from dmbp.linear.lines import Pieces, Smoothing
from dmbp.linear.network import LinearNetwork, Masks
from dmbp.linear.selection import Selection
from dmbp.linear.step import Site
from dmbp.linear.targets import ClassWeights, Rows, Target

__all__ = [
    "ClassWeights",
    "LinearNetwork",
    "Linearizer",
    "Masks",
    "Pieces",
    "Rows",
    "Selection",
    "Site",
    "Smoothing",
    "Target",
    "linearize",
]
