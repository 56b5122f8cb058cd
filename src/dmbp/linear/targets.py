"""Targets: the scores that are explained.

A target is a class, a weighted sum of classes, or a function of the outputs; an image may have
several. A row is one target of one image, and its score is a number computed from that image's
outputs. The linear network replaces a function by its tangent at the model's outputs.

    >>> rows = read_target([2, {0: 1.0, 1: -1.0}], outputs=torch.zeros(1, 3))
    >>> rows.image                                         # one image, two targets
    (0, 0)
    >>> rows.scores(torch.tensor([[5.0, 6.0, 8.0], [5.0, 6.0, 8.0]])).tolist()
    [8.0, -1.0]

If an image's outputs have several dimensions, such as (steps, classes) or (classes, height, width),
a tuple with an index for each of them takes the place of a class. Rows hold such outputs flattened;
a function receives them in their own shape. Targets with a name (`named_target.py`) are bound to
their image's outputs.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, cast

import torch
from torch import Tensor

from dmbp.errors import TargetError
from dmbp.linear.named_target import BoundTarget, NamedTarget, TargetContext
from dmbp.probabilities import Activation

Index = int | tuple[int, ...]
"""A class, or an index for each dimension of an image's outputs if there are several."""

ClassWeights = Mapping[Index, float] | Mapping[int, float]
"""A weighted sum of outputs: `{285: 1.0, 243: -1.0}` is class 285 minus class 243."""

ScoreFunction = Callable[[Tensor], Tensor]
"""Computes a score from one image's outputs, (classes,) unless they have several dimensions."""

OneTarget = Index | ClassWeights | ScoreFunction | NamedTarget
Target = OneTarget | Sequence[OneTarget | Sequence[OneTarget]] | Tensor | None


@dataclass(frozen=True)
class TargetRows:
    """One target for each row.

    Attributes:
        image: The index of each row's image.
        labels: The target of each row as the caller gave it.
        shape: The shape of an image's outputs, (classes,) unless they have several dimensions.
    """

    image: tuple[int, ...]
    labels: tuple[OneTarget, ...]
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        """The number of outputs of an image."""
        return math.prod(self.shape)

    def scores(
        self, outputs: Tensor, activation: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Return the score of each row, (rows,), from the outputs of its image, (rows, classes).

        `activation` is applied to the outputs before classes are read, to obtain probabilities for
        example; target functions receive the outputs themselves, and a target with a name gives
        its own probability if it has one.
        """
        read = outputs if activation is None else activation(outputs)
        functions = self._functions(probabilities=activation is not None)
        if len(functions) == len(self):
            scores = outputs.new_zeros(len(self))
        else:
            scores = (read * self._weights(outputs)).sum(1)
        if not functions:
            return scores
        return torch.stack(
            [
                functions[row](outputs[row].view(self.shape)) if row in functions else scores[row]
                for row in range(len(self))
            ]
        )

    def _functions(self, *, probabilities: bool = False) -> dict[int, ScoreFunction]:
        """Return the function of each row whose score is not a weighted sum of outputs."""
        functions: dict[int, ScoreFunction] = {}
        for row, label in enumerate(self.labels):
            if isinstance(label, BoundTarget):
                if probabilities:
                    functions[row] = label.likelihood
                elif label.weights is None:
                    functions[row] = label
            elif callable(label):
                functions[row] = label
        return functions

    def tangent(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (rows, classes) and offsets (rows,) of the tangent at `outputs`."""
        if self.is_linear:
            return self._weights(outputs), outputs.new_zeros(len(self))
        with torch.enable_grad():
            at = outputs.detach().requires_grad_()
            scores = self.scores(at)
            weights = torch.autograd.grad(scores.sum(), at)[0]
        return weights, scores.detach() - (outputs * weights).sum(1)

    @property
    def is_linear(self) -> bool:
        """Whether every score is a weighted sum of outputs, with one tangent everywhere."""
        return not self._functions()

    def among(self, classes: int) -> "TargetRows":
        """Return the same rows for a model with another number of classes.

        Raises:
            TargetError: If the model lacks one of the classes.
        """
        if classes == self.classes:
            return self
        _check_classes(self.labels, (classes,))
        return replace(self, shape=(classes,))

    def pick(self, indices: Sequence[int]) -> "TargetRows":
        """Return the rows at `indices`, in that order."""
        return TargetRows(
            tuple(self.image[k] for k in indices),
            tuple(self.labels[k] for k in indices),
            self.shape,
        )

    def batches(self, size: int) -> Iterator[list[int]]:
        """Yield the indices of all rows, at most `size` at a time."""
        for start in range(0, len(self), size):
            yield list(range(start, min(start + size, len(self))))

    def batches_of_images(self, size: int) -> Iterator[list[int]]:
        """Yield batches as `batches` does, each with the rows of a single image."""
        for image in dict.fromkeys(self.image):
            own = [row for row, other in enumerate(self.image) if other == image]
            yield from (own[start : start + size] for start in range(0, len(own), size))

    def _weights(self, like: Tensor) -> Tensor:
        """Return the weights of classes as a matrix (rows, classes), zero for functions."""
        entries = [
            (row, index, weight)
            for row, label in enumerate(self.labels)
            for index, weight in _as_weights(label, self.shape).items()
        ]
        weights = torch.zeros(len(self), self.classes, dtype=like.dtype)
        if entries:  # built on the CPU, so there is one transfer and not one for each entry
            row, index, weight = zip(*entries, strict=True)
            weights[list(row), list(index)] = torch.tensor(weight, dtype=like.dtype)
        for row, label in enumerate(self.labels):
            if isinstance(label, BoundTarget) and label.weights is not None:
                weights[row] = label.weights.flatten().to(weights)
        return weights.to(like.device)


def read_target(
    target: Target,
    *,
    outputs: Tensor,
    shape: tuple[int, ...] | None = None,
    size: tuple[int, ...] = (),
    activation: Activation = "softmax",
) -> TargetRows:
    """Turn a target into rows.

    Args:
        target: None takes each image's highest output. A list has one target for each image. A
            nested list has several targets for each image, and for a single image a flat list does.
        outputs: The model's outputs, (images, classes).
        shape: The shape of an image's outputs before they were flattened to classes.
        size: The spatial sizes of the model's input.
        activation: What turns outputs into the probabilities of targets with a name.

    Returns:
        A row for each target of each image.

    Raises:
        TargetError: If there is no such class, or a function does not return a score.
    """
    images, classes = outputs.shape
    shape = shape or (classes,)
    if target is None and len(shape) > 1:
        raise TargetError(
            f"the model's outputs for an image have shape {shape}: say what to explain, as a "
            f"target such as {(0,) * len(shape)} or as a function of these outputs"
        )
    rows = _rows(outputs.argmax(1) if target is None else target, images, shape)
    _check_classes(rows.labels, shape)
    labels: list[OneTarget] = []
    for image, label in zip(rows.image, rows.labels, strict=True):
        one = outputs[image].view(shape)
        bound = label
        if isinstance(label, NamedTarget):
            bound = label.bind(TargetContext(one, size, activation=activation))
        if callable(bound):
            _check_function(bound, one)
        labels.append(bound)
    return replace(rows, labels=tuple(labels))


def rows_without_forward(
    target: Target, *, images: int, shape: tuple[int, ...]
) -> TargetRows | None:
    """Return what `read_target` returns, or None if that depends on the outputs.

    It does for None (the highest output) and for functions. Invalid targets give None, too.
    """
    if target is None:
        return None
    with suppress(TargetError):
        rows = _rows(target, images, shape)
        _check_classes(rows.labels, shape)
        is_known = rows.is_linear and not any(isinstance(k, NamedTarget) for k in rows.labels)
        return rows if is_known else None
    return None


def _rows(target: Target, images: int, shape: tuple[int, ...]) -> TargetRows:
    by_image = _targets_by_image(target, images, dimensions=len(shape))
    pairs = [(image, label) for image, labels in enumerate(by_image) for label in labels]
    return TargetRows(tuple(i for i, _ in pairs), tuple(label for _, label in pairs), shape)


def _targets_by_image(target: Target, images: int, *, dimensions: int) -> list[list[OneTarget]]:
    def is_list(item: object) -> bool:
        return _is_list(item) and not (dimensions > 1 and isinstance(item, tuple))

    if isinstance(target, Tensor):
        if target.is_floating_point() or target.is_complex() or target.dtype is torch.bool:
            raise TargetError(f"a target tensor holds class indices, not {target.dtype} values")
        target = cast("Target", target.tolist())
    elif hasattr(target, "tolist"):  # a NumPy array
        target = cast("Target", cast("Any", target).tolist())
    if isinstance(target, Mapping) or not is_list(target):
        return [[cast("OneTarget", target)]] * images
    target = cast("Sequence[Any]", target)
    if images == 1 and not any(is_list(item) for item in target):
        target = [list(cast("Sequence[OneTarget]", target))]
    if not target or any(is_list(item) and not item for item in target):
        raise TargetError("the list of targets is empty")
    if len(target) != images:
        raise TargetError(f"{len(target)} targets were given for {images} images")
    items = [cast("Any", item).tolist() if hasattr(item, "tolist") else item for item in target]
    return [
        list(cast("Sequence[OneTarget]", item)) if is_list(item) else [cast("OneTarget", item)]
        for item in items
    ]


def function_name(function: ScoreFunction | NamedTarget) -> str:
    """Return the name of a target function, or of a target with a name."""
    if isinstance(function, NamedTarget):
        return function.text
    if isinstance(function, BoundTarget):
        return function.name
    return str(getattr(function, "__name__", type(function).__name__))


def _is_list(item: object) -> bool:
    return isinstance(item, Sequence) and not isinstance(item, str)


def _as_weights(label: Any, shape: tuple[int, ...]) -> dict[int, float]:
    """Return the weights of flattened outputs; a function has none."""
    if callable(label) or isinstance(label, NamedTarget):
        return {}
    weights: Mapping[Any, float] = label if isinstance(label, Mapping) else {label: 1.0}
    return {_flat(index, shape): weight for index, weight in weights.items()}


def _flat(index: Any, shape: tuple[int, ...]) -> int:
    if len(shape) == 1:
        return int(index)
    flat = 0
    for position, size in zip(index, shape, strict=True):
        flat = flat * size + int(position)
    return flat


def _check_function(function: ScoreFunction, outputs: Tensor) -> None:
    try:
        with torch.enable_grad():
            score: Any = function(outputs.detach().clone().requires_grad_())
    except Exception as error:
        raise TargetError(
            f"the target function fails on one image's outputs, of shape "
            f"{tuple(outputs.shape)}: {error}"
        ) from error
    if not isinstance(score, Tensor) or score.dim() != 0 or not score.requires_grad:
        raise TargetError(
            "a target function must return one number computed from an image's outputs, as a "
            f"tensor without dimensions that carries gradients, not {score!r:.60}"
        )


def _check_classes(labels: Sequence[OneTarget], shape: tuple[int, ...]) -> None:
    for label in labels:
        if not callable(label) and not isinstance(label, NamedTarget):
            _check_label(label, shape)


def _check_label(label: Any, shape: tuple[int, ...]) -> None:
    is_index = isinstance(label, tuple) and len(shape) > 1
    if (
        isinstance(label, Sequence | set | frozenset)
        and not isinstance(label, str)
        and not is_index
    ):
        raise TargetError(f"a target is a class or a list of them for each image, not {label!r}")
    one: Any = label
    weights: Mapping[Any, Any] = one if isinstance(one, Mapping) else {one: 1.0}
    if not all(isinstance(w, Real) and math.isfinite(w) for w in weights.values()):
        raise TargetError(f"the weights of classes must be finite numbers, not {label!r}")
    if not any(weights.values()):
        raise TargetError("a target of weighted classes needs a class with a weight other than 0")
    for index in weights:
        _check_class(index, shape) if len(shape) == 1 else _check_index(index, shape)


def _check_class(index: Any, shape: tuple[int, ...]) -> None:
    (classes,) = shape
    if isinstance(index, bool) or not hasattr(index, "__index__"):
        raise TargetError(
            f"a target is a class index or a mapping of class indices to weights, not {index!r}"
        )
    if not 0 <= int(index) < classes:
        raise TargetError(
            f"class {int(index)} is out of range: the model has classes 0 to {classes - 1}"
        )


def _check_index(index: Any, shape: tuple[int, ...]) -> None:
    """Check an index into outputs of several dimensions."""
    positions: tuple[Any, ...] = index if isinstance(index, tuple) else (index,)
    is_wrong = any(isinstance(k, bool) or not hasattr(k, "__index__") for k in positions)
    if is_wrong or len(positions) != len(shape):
        raise TargetError(
            f"the model's outputs for an image have shape {shape}, so a target is a tuple of "
            f"{len(shape)} numbers or a function of these outputs, not {index!r}"
        )
    if not all(0 <= int(k) < size for k, size in zip(positions, shape, strict=True)):
        raise TargetError(f"target {index!r} is out of range: the outputs have shape {shape}")
