"""Which output is asked about: a class, one class an image, several, or a weighted sum of classes.

A target becomes a row of weights over the outputs, so the score asked about is always
`(outputs * weights).sum(1)`.

    >>> rows = read_target([2, {0: 1.0, 1: -1.0}], outputs=torch.zeros(1, 3))
    >>> rows.image                                         # one image, two questions
    (0, 0)
    >>> rows.weights(torch.zeros(())).tolist()
    [[0.0, 0.0, 1.0], [1.0, -1.0, 0.0]]
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from dmbp.errors import TargetError

ClassWeights = Mapping[int, float]
"""A linear functional of the outputs: `{285: 1.0, 243: -1.0}` is class 285 minus class 243."""

OneTarget = int | ClassWeights
Target = OneTarget | Sequence[OneTarget | Sequence[OneTarget]] | Tensor | None


@dataclass(frozen=True)
class Rows:
    """The questions asked: row r is about image `image[r]` and scores `outputs · weights[r]`.

    `labels` holds the target of each row as the caller gave it.
    """

    image: tuple[int, ...]
    labels: tuple[OneTarget, ...]
    classes: int

    def weights(self, like: Tensor) -> Tensor:
        """The rows as a matrix (rows, classes) in the dtype and on the device of `like`."""
        weights = torch.zeros(len(self.labels), self.classes, dtype=like.dtype, device=like.device)
        for row, label in enumerate(self.labels):
            for index, weight in _as_weights(label).items():
                weights[row, index] = weight
        return weights


def read_target(target: Target, *, outputs: Tensor) -> Rows:
    """Read a target for a model whose outputs at the inputs are `outputs` (images, classes).

    None asks about each image's highest output. A list asks one target an image; for a single
    image, and for nested lists, several targets an image.
    """
    images, classes = outputs.shape
    questions = _questions(target, images, outputs)
    pairs = [(image, label) for image, labels in enumerate(questions) for label in labels]
    for _, label in pairs:
        _check(label, classes)
    return Rows(tuple(i for i, _ in pairs), tuple(label for _, label in pairs), classes)


def _questions(target: Target, images: int, outputs: Tensor) -> list[list[OneTarget]]:
    if target is None:
        return [[int(best)] for best in outputs.argmax(1)]
    if isinstance(target, Tensor):
        if target.is_floating_point() or target.is_complex() or target.dtype is torch.bool:
            raise TargetError(f"a target tensor holds class indices, not {target.dtype} values")
        target = cast("Target", target.tolist())
    if isinstance(target, Mapping) or not isinstance(target, Sequence) or isinstance(target, str):
        return [[cast("OneTarget", target)]] * images
    if images == 1 and not any(_is_list(item) for item in target):
        target = [list(cast("Sequence[OneTarget]", target))]
    if not target or any(_is_list(item) and not item for item in target):
        raise TargetError("the list of targets is empty")
    if len(target) != images:
        raise TargetError(f"{len(target)} targets were given for {images} images")
    return [
        list(cast("Sequence[OneTarget]", item)) if _is_list(item) else [cast("OneTarget", item)]
        for item in target
    ]


def _is_list(item: object) -> bool:
    return isinstance(item, Sequence) and not isinstance(item, str)


def _as_weights(label: OneTarget) -> ClassWeights:
    return label if isinstance(label, Mapping) else {label: 1.0}


def _check(label: Any, classes: int) -> None:
    weights: Mapping[Any, Any] = _as_weights(label)
    if not all(isinstance(w, int | float) and math.isfinite(w) for w in weights.values()):
        raise TargetError(f"the weights of classes must be finite numbers, not {label!r}")
    if not any(weights.values()):
        raise TargetError("a target of weighted classes needs a class with a weight other than 0")
    for index in weights:
        if isinstance(index, bool) or not hasattr(index, "__index__"):
            raise TargetError(
                f"a target is a class index or a mapping of class indices to weights, not {index!r}"
            )
        if not 0 <= int(index) < classes:
            raise TargetError(
                f"class {int(index)} is out of range: the model has classes 0 to {classes - 1}"
            )
