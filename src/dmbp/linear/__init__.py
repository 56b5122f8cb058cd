"""Turns a network into an affine map: captures a model's graph and freezes it at an input x.

Read `network.py` first. In the order of a call:

- `model/`: runs the user's model with its extra inputs, and picks the output to explain;
- `targets.py`: what is explained about each image, as rows; `named_target.py`: the base class of
  `dmbp.targets`; `class_difference.py`: targets that subtract other classes from one;
- `capture/`: exports the model as a graph of ATen operations;
- `rules/`: how each operation freezes at x, in one table;
- `lines.py`, `steps.py`: frozen activations, and the steps that a frozen network consists of;
- `freeze/`: freezes a captured graph at x, and checks it against the model's output;
  `freeze/secants.py` serves DeepLift;
- `network.py`: `LinearNetwork`, with its value and its pullback;
- `positions.py`: where on the image the elements of each activation lie;
- `attention.py`: the probabilities of attention layers, with the model's own gradients;
- `linearizer.py`: `dmbp.linearize`, which does all of this;
- `question.py`: the rows of one batch, as attribution methods and the engine receive them.
"""

from dmbp.linear.class_difference import rather_than
from dmbp.linear.linearizer import Linearizer, linearize
from dmbp.linear.lines import Pieces, Smoothing
from dmbp.linear.network import LinearNetwork, Masks
from dmbp.linear.question import Question
from dmbp.linear.steps import Selection, Site
from dmbp.linear.targets import ClassWeights, OneTarget, Target, TargetRows

__all__ = [
    "ClassWeights",
    "LinearNetwork",
    "Linearizer",
    "Masks",
    "OneTarget",
    "Pieces",
    "Question",
    "Selection",
    "Site",
    "Smoothing",
    "Target",
    "TargetRows",
    "linearize",
    "rather_than",
]
