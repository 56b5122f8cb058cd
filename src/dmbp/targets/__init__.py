"""Targets as small objects: what to ask a network besides "which class".

    >>> explainer = dmbp.DMBP(model)
    >>> explainer.attribute(images, target=Margin(3, over=1)).shape == images.shape
    True
    >>> str(Region("cat", box=(40, 30, 90, 120)))
    'region:cat@box=40,30,90,120'

- `scores`: classes, differences of classes, values, steps of a sequence, similarities;
- `regions`: parts of a segmentation; `boxes`: what a detector finds;
- `outputs`: what a model says, and what is asked by default;
- `text`: how each target is written on the command line and in files.

Every method and metric takes them as `target`. Write your own as a `NamedTarget`, whose docstring
has an example.
"""

from dmbp.linear.named_target import BoundTarget, NamedTarget, TargetContext, WeightedTargets
from dmbp.targets.boxes import (
    AnchorBoxes,
    Box,
    BoxLayout,
    CornerBoxes,
    FoundBox,
    QueryBoxes,
    YoloBoxes,
    boxes_in,
    find_boxes,
)
from dmbp.targets.outputs import OutputKind, output_kind
from dmbp.targets.regions import Region
from dmbp.targets.scores import Class, Margin, Similarity, Step, Value, read_characters
from dmbp.targets.text import is_target_text, target_from_text

__all__ = [
    "AnchorBoxes",
    "BoundTarget",
    "Box",
    "BoxLayout",
    "Class",
    "CornerBoxes",
    "FoundBox",
    "Margin",
    "NamedTarget",
    "OutputKind",
    "QueryBoxes",
    "Region",
    "Similarity",
    "Step",
    "TargetContext",
    "Value",
    "WeightedTargets",
    "YoloBoxes",
    "boxes_in",
    "find_boxes",
    "is_target_text",
    "output_kind",
    "read_characters",
    "target_from_text",
]
