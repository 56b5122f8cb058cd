"""A model's signature: the extra inputs it takes, and which of its outputs is explained.

Extra inputs are passed on to the model. A tensor whose length is the number of images has one entry
for each image, as in Captum, unless the model's outputs show that it means something else
(`checks.infer_by_image`).

    >>> extra = ExtraInputs.of((torch.ones(3, 4), 0.5), images=3)
    >>> extra.pick([2]).arguments(5)[0].shape              # repeated for five images
    torch.Size([5, 4])

The explained output is a tensor (batch, classes), or one with more dimensions, which is flattened
to that; `OutputForm` knows its shape and the activation that the model ends in. An output named
`logits`, or the only tensor of that shape, is found automatically; otherwise the caller selects it
by its name, its position or a function of what the model returns.

    >>> outputs = {"logits": torch.zeros(2, 5), "features": torch.zeros(2, 8)}
    >>> find_output(outputs, images=2)
    'logits'
    >>> select_output(outputs, "features").shape
    torch.Size([2, 8])
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from itertools import combinations
from typing import Any, Literal, cast

import torch
from torch import Tensor

from dmbp.errors import InputError, ModelError
from dmbp.probabilities import Activation, LastActivation, activation_function

Output = str | int | Callable[[Any], Tensor] | None
"""A name, a position or a function of what the model returns; None finds it automatically."""

LOGITS = "logits"

SAME_PROBABILITIES = 1e-3
"""The mean difference up to which a softmax's results are those of the model's last softmax."""

COMMAND_LINE_HINT = (
    "; on the command line, pass --model a function that returns a model with this output alone"
)
"""The hint for the command line, which has no option for `output`."""


@dataclass(frozen=True)
class ExtraInputs:
    """The model's arguments after the explained one.

    The values at the positions `by_image` are tensors with one entry for each image.
    """

    values: tuple[Any, ...] = ()
    by_image: frozenset[int] = frozenset()

    @classmethod
    def of(cls, arguments: Any, *, images: int) -> "ExtraInputs":
        """Read Captum's `additional_forward_args`: None, a single argument, or a tuple of them."""
        if arguments is None:
            return cls()
        values = (
            cast("tuple[Any, ...]", arguments) if isinstance(arguments, tuple) else (arguments,)
        )
        values = tuple(v.detach() if isinstance(v, Tensor) else v for v in values)
        return cls(values, frozenset(k for k, v in enumerate(values) if _has_length(v, images)))

    @property
    def tensor_positions(self) -> tuple[int, ...]:
        """The positions of all tensors among the values."""
        return tuple(k for k, value in enumerate(self.values) if isinstance(value, Tensor))

    @property
    def signature(self) -> Any:
        """What a graph captured with these inputs depends on: shapes, dtypes and plain values."""
        return tuple(
            (tuple(value.shape[1 if k in self.by_image else 0 :]), value.dtype)
            if isinstance(value, Tensor)
            else repr(value)
            for k, value in enumerate(self.values)
        )

    def readings(self) -> Iterator["ExtraInputs"]:
        """Yield the same values with every subset of `by_image`, largest subsets first."""
        for count in range(len(self.by_image), -1, -1):
            for positions in combinations(sorted(self.by_image), count):
                yield replace(self, by_image=frozenset(positions))

    def pick(self, images: Sequence[int]) -> "ExtraInputs":
        """Return the extra inputs of the images at these indices."""
        return self._with({k: self.values[k][list(images)] for k in self.by_image})

    def arguments(self, count: int) -> tuple[Any, ...]:
        """Return the arguments for `count` images; the entries of a single image are repeated."""
        return self._with({k: _repeated(self.values[k], count) for k in self.by_image}).values

    def with_tensors(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """Return the arguments with the tensors replaced, in order."""
        return self._with(dict(zip(self.tensor_positions, tensors, strict=True))).values

    def _with(self, others: dict[int, Any]) -> "ExtraInputs":
        return replace(self, values=tuple(others.get(k, v) for k, v in enumerate(self.values)))


def _has_length(value: Any, images: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == images


def _repeated(value: Tensor, count: int) -> Tensor:
    return value if len(value) == count else value.expand(count, *value.shape[1:]).contiguous()


@dataclass(frozen=True)
class OutputForm:
    """The shape of one image's outputs, and the activation that the model ends in.

    `dimension` is the one that a softmax runs over, counted from the end.
    """

    shape: tuple[int, ...]
    activation: str | None = None
    dimension: int = -1

    @classmethod
    def of(cls, outputs: Tensor, last: LastActivation) -> tuple["OutputForm", Tensor]:
        """Return the form of a model's outputs, and the scores before its last activation."""
        shape = tuple(outputs.shape[1:])
        found = last.before(outputs)
        if found is None:
            return cls(shape), outputs
        activation, scores = found
        if activation == "sigmoid":
            return cls(shape, activation), scores
        for dimension in range(-1, -outputs.dim(), -1):
            form = cls(shape, activation, dimension)
            difference = (form.returned(scores) - outputs).detach().abs().mean()
            if float(difference) < SAME_PROBABILITIES:
                return form, scores
        return cls(shape), outputs  # a softmax over the batch, or over a dimension that was split

    @property
    def has_several_dimensions(self) -> bool:
        """Whether an image's outputs are more than a list of classes."""
        return len(self.shape) > 1

    @property
    def own_activation(self) -> Literal["softmax", "sigmoid"] | None:
        """What turns scores into probabilities, if the model ends in an activation."""
        if self.activation is None:
            return None
        return "sigmoid" if self.activation == "sigmoid" else "softmax"

    @property
    def is_plain(self) -> bool:
        """Whether the model returns the scores as they are explained."""
        return self.activation is None and not self.has_several_dimensions

    def returned(self, scores: Tensor) -> Tensor:
        """Return what the model itself returns for scores (images, *shape)."""
        if self.activation == "sigmoid":
            return scores.sigmoid()
        if self.activation == "softmax":
            return scores.softmax(self.dimension)
        return scores if self.activation is None else scores.log_softmax(self.dimension)

    def probabilities(self, outputs: Tensor, activation: Activation) -> Tensor:
        """Return probabilities (images, classes) for scores of that shape.

        They are the model's own if it ends in an activation. A function given as `activation`
        receives what the model returns.
        """
        scores = outputs.unflatten(1, self.shape) if self.has_several_dimensions else outputs
        if callable(activation) or self.activation is None:
            found = activation_function(activation)(self.returned(scores))
        elif self.activation == "log-softmax":
            found = scores.softmax(self.dimension)
        else:
            found = self.returned(scores)
        return found.flatten(1)


def add_class_dimension(scores: Tensor) -> Tensor:
    """Turn one score for each image, (images,), into the scores of a single class."""
    return scores.unsqueeze(1)


def find_output(returned: Any, *, images: int) -> Output:
    """Return which output to explain; None if the model returns a single tensor.

    For scores (images,) it is a function that adds a dimension for the one class.

    Raises:
        ModelError: If no output, or more than one, has shape (batch, classes).
    """
    if isinstance(returned, Tensor):
        return add_class_dimension if returned.shape == (images,) else None
    parts = _parts(returned)
    tensors = {name: part for name, part in parts.items() if isinstance(part, Tensor)}
    fitting = [name for name, part in tensors.items() if part.dim() == 2 and len(part) == images]
    if LOGITS in tensors or len(fitting) == 1:
        return LOGITS if LOGITS in tensors else fitting[0]
    kind = type(returned).__name__
    if not fitting:
        raise ModelError(
            f"the model returns a {kind} without a tensor of shape (batch, classes)"
            f"{_listed(tensors)}; pass output= a function that makes one{COMMAND_LINE_HINT}"
        )
    raise ModelError(
        f"the model returns a {kind} with {len(fitting)} tensors of shape (batch, classes)"
        f"{_listed({name: tensors[name] for name in fitting})}; say which one to explain, for "
        f"example output={fitting[0]!r}{COMMAND_LINE_HINT}"
    )


def select_output(returned: Any, output: Output) -> Any:
    """Return the part that `output` selects of what a model returned."""
    if output is None:
        return returned
    if callable(output):
        return _call(output, returned)
    parts = {} if isinstance(returned, Tensor) else _parts(returned)
    positions = list(parts.values())
    if output in parts and not isinstance(output, bool):
        return parts[output]
    if isinstance(output, int) and not isinstance(output, bool) and 0 <= output < len(positions):
        return positions[output]
    kind = type(returned).__name__
    available = f"it has {', '.join(map(repr, parts))}" if parts else "it has no parts"
    raise InputError(f"the model returns a {kind} without an output {output!r}: {available}")


def _call(function: Callable[[Any], Tensor], returned: Any) -> Tensor:
    try:
        return function(returned)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise InputError(
            f"the function given as output fails on the {type(returned).__name__} that the model "
            f"returns: {error}"
        ) from error


def _parts(returned: Any) -> dict[str | int, Any]:
    """Return the parts of a mapping, named tuple, sequence or object, by name or position."""
    if isinstance(returned, Mapping):
        return dict(cast("Mapping[str | int, Any]", returned))
    if isinstance(returned, tuple | list):
        sequence = cast("tuple[Any, ...]", returned)
        names: Any = getattr(sequence, "_fields", range(len(sequence)))
        return dict(zip(names, sequence, strict=True))
    has_parts = is_dataclass(returned) or hasattr(returned, "__dict__")
    return {**vars(returned)} if has_parts else {}


def _listed(tensors: Mapping[str | int, Tensor]) -> str:
    listed = ", ".join(f"{name!r} {tuple(part.shape)}" for name, part in tensors.items())
    return f" ({listed})" if listed else ""
