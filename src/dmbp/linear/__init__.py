"""A network as an affine map: capture, freezing at x, and the linear network itself."""

from dmbp.linear.linearizer import Linearizer, linearize
from dmbp.linear.lines import Pieces, Smoothing
from dmbp.linear.network import LinearNetwork, Masks
from dmbp.linear.question import Question
from dmbp.linear.steps import Selection, Site
from dmbp.linear.targets import ClassWeights, Target, TargetRows

__all__ = [
    "ClassWeights",
    "LinearNetwork",
    "Linearizer",
    "Masks",
    "Pieces",
    "Question",
    "Selection",
    "Site",
    "Smoothing",
    "Target",
    "TargetRows",
    "linearize",
]
