"""Inputs beside the one that is explained; they are held as they are.

    >>> held = Held.of((torch.ones(3, 4), 0.5), images=3)
    >>> held.pick([2]).beside(5)[0].shape                  # as many as there are images
    torch.Size([5, 4])

A tensor whose first dimension counts the images is read image by image, as in Captum, unless the
model's outputs say that it means something else by it; everything else goes to the model as it is.

Which of the things a model returns is explained: one tensor of shape (batch, classes).

    >>> outputs = {"logits": torch.zeros(2, 5), "features": torch.zeros(2, 8)}
    >>> choice_among(outputs, images=2)
    'logits'
    >>> picked(outputs, "features").shape
    torch.Size([2, 8])

What is called `logits` is taken without asking, and so is the only tensor of that shape; else the
caller says which, by a name, a position or a function of what the model returns.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from itertools import combinations
from typing import Any, cast

import torch
from torch import Tensor

from dmbp.errors import InputError, ModelError


@dataclass(frozen=True)
class ExtraInputs:
    """The model's further arguments; those at the places `by_image` hold a row for each image."""

    values: tuple[Any, ...] = ()
    by_image: frozenset[int] = frozenset()

    @classmethod
    def of(cls, given: Any, *, images: int) -> "ExtraInputs":
        """What Captum allows for `additional_forward_args`: nothing, one thing, or a tuple."""
        if given is None:
            return cls()
        values = cast("tuple[Any, ...]", given) if isinstance(given, tuple) else (given,)
        values = tuple(v.detach() if isinstance(v, Tensor) else v for v in values)
        return cls(values, frozenset(k for k, v in enumerate(values) if _counts(v, images)))

    @property
    def tensors(self) -> tuple[int, ...]:
        """The places of all tensors."""
        return tuple(k for k, value in enumerate(self.values) if isinstance(value, Tensor))

    @property
    def form(self) -> Any:
        """What a graph captured with these depends on."""
        return tuple(
            (tuple(value.shape[1 if k in self.by_image else 0 :]), value.dtype)
            if isinstance(value, Tensor)
            else repr(value)
            for k, value in enumerate(self.values)
        )

    def readings(self) -> Iterator["ExtraInputs"]:
        """Those tensors image by image or as they are, in every way there is, the fewest last."""
        for count in range(len(self.by_image), -1, -1):
            for places in combinations(sorted(self.by_image), count):
                yield replace(self, by_image=frozenset(places))

    def pick(self, images: Sequence[int]) -> "ExtraInputs":
        """The same for some of the images."""
        return self._with({k: self.values[k][list(images)] for k in self.by_image})

    def beside(self, count: int) -> tuple[Any, ...]:
        """The arguments for `count` images, which are all those held or copies of a single one."""
        return self._with({k: _copied(self.values[k], count) for k in self.by_image}).values

    def filled(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """The arguments with other tensors in place of these."""
        return self._with(dict(zip(self.tensors, tensors, strict=True))).values

    def _with(self, others: dict[int, Any]) -> "ExtraInputs":
        return replace(self, values=tuple(others.get(k, v) for k, v in enumerate(self.values)))


def _counts(value: Any, images: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == images


def _copied(value: Tensor, count: int) -> Tensor:
    return value if len(value) == count else value.expand(count, *value.shape[1:]).contiguous()


Output = str | int | Callable[[Any], Tensor] | None
"""A name, a position, a function of what the model returns; None leaves the choice to us."""

LOGITS = "logits"


IN_A_FACTORY = "; on the command line, name a factory of a module that returns it alone"
"""Where `output=` cannot be said."""


def one_class(scores: Tensor) -> Tensor:
    """One score an image, as `squeeze(1)` leaves it, is that of a single class."""
    return scores[:, None]


def choice_among(returned: Any, *, images: int) -> Output:
    """The name or position of the one tensor that is meant; None where it comes alone as it is."""
    if isinstance(returned, Tensor):
        return one_class if returned.shape == (images,) else None
    parts = _parts(returned)
    tensors = {name: part for name, part in parts.items() if isinstance(part, Tensor)}
    fitting = [name for name, part in tensors.items() if part.dim() == 2 and len(part) == images]
    if LOGITS in tensors or len(fitting) == 1:
        return LOGITS if LOGITS in tensors else fitting[0]
    kind = type(returned).__name__
    if not fitting:
        raise ModelError(
            f"the model returns a {kind} without a tensor of shape (batch, classes)"
            f"{_listed(tensors)}; output= may be a function that makes one{IN_A_FACTORY}"
        )
    raise ModelError(
        f"the model returns a {kind} with {len(fitting)} tensors of shape (batch, classes)"
        f"{_listed({name: tensors[name] for name in fitting})}; say which one to explain, as "
        f"output={fitting[0]!r} does{IN_A_FACTORY}"
    )


def picked(returned: Any, output: Output) -> Any:
    """What is called `output` in what a model returns."""
    if output is None:
        return returned
    if callable(output):
        return _made(returned, output)
    parts = {} if isinstance(returned, Tensor) else _parts(returned)
    positions = list(parts.values())
    if output in parts and not isinstance(output, bool):
        return parts[output]
    if isinstance(output, int) and not isinstance(output, bool) and 0 <= output < len(positions):
        return positions[output]
    kind = type(returned).__name__
    there = f"it has {', '.join(map(repr, parts))}" if parts else "it has no parts"
    raise InputError(f"the model returns a {kind} without an output {output!r}: {there}")


def _made(returned: Any, function: Callable[[Any], Tensor]) -> Tensor:
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
    """The parts of a mapping, a named tuple, a sequence or an object, by name or position."""
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


def check_scores(outputs: Any, images: int, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse what is no finite tensor (images, classes); `tensors` are the model's own."""
    if not isinstance(outputs, Tensor):
        raise ModelError(
            f"the output to explain is a {type(outputs).__name__}; dmbp explains tensors of "
            "shape (batch, classes)"
        )
    if outputs.dim() != 2 or outputs.shape[0] != images:
        raise ModelError(
            f"the model's output has shape {tuple(outputs.shape)} for {images} inputs; dmbp "
            "explains outputs of shape (batch, classes)"
        )
    if not torch.isfinite(outputs).all():
        raise ModelError(_where_not_finite(tensors))


def _where_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str:
    for name, tensor in tensors:
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            return f"the model's weights contain NaN or infinity, first in {name!r}"
    return "the model's output contains NaN or infinity for these inputs"
