"""Why this class rather than another: targets that subtract other classes from one.

The score is a difference of outputs. What two classes have in common cancels, so the map shows what
separates them: pixels that speak for the other class are negative.

    >>> rather_than(3, 1)
    {3: 1.0, 1: -1.0}
    >>> rather_than(3, [1, 2])                             # minus their mean
    {3: 1.0, 1: -0.5, 2: -0.5}
    >>> rather_than(1, "rivals", outputs=torch.tensor([0.0, 3.0, 0.0, -99.0, 0.0]))
    {1: 1.0, 0: -0.3333333333333333, 2: -0.3333333333333333, 4: -0.3333333333333333}
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_index
from typing import Any, Literal, cast

import torch
from torch import Tensor

from dmbp.errors import TargetError
from dmbp.probabilities import Activation, activation_function

RIVALS: Literal["rivals"] = "rivals"
RIVAL_COUNT = 3
"""How many classes "rivals" stands for, if the model has as many."""

Others = int | Sequence[int] | Literal["rivals"]
"""What a class is compared with: a class, several classes, or the strongest other ones."""


def rather_than(
    target: int,
    others: Others,
    *,
    outputs: Tensor | None = None,
    activation: Activation = "softmax",
) -> dict[int, float]:
    """Return a target that asks why the model sees one class rather than others.

    The score is the output of `target` minus the mean output of `others`. Every method takes the
    result as its `target`.

    Args:
        target: The class to explain.
        others: A class, a list of classes, or "rivals": the three most probable classes besides
            `target`, whose mean is weighted by their probabilities.
        outputs: The model's outputs for one image, (classes,) or (1, classes). Only "rivals" needs
            them.
        activation: What turns these outputs into probabilities: "softmax", "sigmoid", "none" or a
            function.

    Returns:
        The weights by class: 1 for `target`, and negative ones that add up to -1 for the others.

    Raises:
        TargetError: If there is no other class, `target` is one of the others, or the outputs are
            missing or are not those of one image.
    """
    subject = _class_index(target)
    if isinstance(others, str):
        return {subject: 1.0} | _rival_weights(subject, others, outputs, activation)
    # Anything but a list is one class; a tensor or array of classes has a `tolist`.
    listed: Any = cast("Any", others).tolist() if hasattr(others, "tolist") else others
    listed = listed if isinstance(listed, Sequence) else [listed]
    classes = list(dict.fromkeys(_class_index(other) for other in listed))
    if not classes:
        raise TargetError("the list of other classes is empty")
    if subject in classes:
        raise TargetError(f"class {subject} cannot be explained rather than itself")
    return {subject: 1.0} | {other: -1 / len(classes) for other in classes}


def _class_index(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TargetError(f"a class is a whole number, not {value!r}")
    return as_index(value)


def _rival_weights(
    subject: int, others: str, outputs: Tensor | None, activation: Activation
) -> dict[int, float]:
    """Return the negative weights of the most probable classes besides `subject`."""
    if others != RIVALS:
        raise TargetError(f'other classes are numbers or "{RIVALS}", not {others!r}')
    if outputs is None:
        raise TargetError(f'"{RIVALS}" depends on the image: give the model\'s outputs for it')
    if outputs.dim() not in (1, 2) or outputs[..., 0].numel() != 1:
        raise TargetError(
            "outputs must be those of one image, (classes,) or (1, classes), not of shape "
            f"{tuple(outputs.shape)}"
        )
    row = outputs.detach().cpu().double().flatten()
    if not torch.isfinite(row).all():
        raise TargetError("outputs contain NaN or infinity, so no class is the strongest")
    if not 0 <= subject < len(row):
        raise TargetError(
            f"class {subject} is out of range: the model has classes 0 to {len(row) - 1}"
        )
    if len(row) == 1:
        raise TargetError("the model has a single output, so there is no other class")
    scores = row.tolist()
    probabilities = activation_function(activation)(row).clamp(min=0).tolist()
    # Probabilities that were rounded to 0 or 1 are equal; the outputs still tell which is stronger.
    ranked = sorted(range(len(row)), key=lambda k: (-probabilities[k], -scores[k]))
    rivals = [k for k in ranked if k != subject][:RIVAL_COUNT]
    total = sum(probabilities[k] for k in rivals)
    return {k: -probabilities[k] / total if total else -1 / len(rivals) for k in rivals}
