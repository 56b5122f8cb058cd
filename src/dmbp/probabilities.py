"""Turns outputs into probabilities, and finds the scores before a model's last activation."""

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from dmbp.errors import InputError, require_known

Activation = Literal["softmax", "sigmoid", "none"] | Callable[[Tensor], Tensor]
"""An activation's name, or a function of outputs (…, classes)."""


def _softmax(outputs: Tensor) -> Tensor:
    """Apply softmax over the classes, or sigmoid to a single output, where softmax is always 1."""
    return outputs.softmax(-1) if outputs.shape[-1] > 1 else outputs.sigmoid()


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": _softmax,  # one class is right
    "sigmoid": torch.sigmoid,  # several classes may be right
    "none": lambda outputs: outputs,  # the outputs are probabilities already
}


def check_activation(activation: Activation) -> None:
    """Raise an `InputError` for an activation that is neither a known name nor a function."""
    activation_function(activation)


def activation_function(activation: Activation) -> Callable[[Tensor], Tensor]:
    """Return an activation as a function.

    Raises:
        InputError: If it is neither a known name nor a function.
    """
    if callable(activation):
        return activation
    if not isinstance(activation, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"activation must be a name or a function, not {activation!r}")
    require_known("activation", activation, ACTIVATIONS)
    return ACTIVATIONS[activation]


ENDINGS: Mapping[str, str] = {
    "softmax": "softmax",
    "_softmax": "softmax",
    "_safe_softmax": "softmax",
    "log_softmax": "log-softmax",
    "_log_softmax": "log-softmax",
    "sigmoid": "sigmoid",
    "sigmoid_": "sigmoid",
    "expit": "sigmoid",
    "special_expit": "sigmoid",
}
"""What a model may end in, by the names of torch's functions and operations."""

SAME_ELEMENTS = frozenset(
    (
        *("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "ravel"),
        *("permute", "transpose", "t", "movedim", "moveaxis", "contiguous", "clone", "alias"),
        *("to", "_to_copy", "type", "float", "double", "half", "bfloat16", "cpu", "cuda"),
    )
)
"""Functions that keep every element of their first argument, in another shape, order or dtype."""

BOUNDS = frozenset(("clamp", "clamp_min", "clamp_max", "clip"))
"""Functions by which probabilities are kept away from 0 and 1."""

JOINS = frozenset(("cat", "concat", "concatenate"))


class LastActivation(TorchFunctionMode):
    """A context that finds the scores before a model's last softmax, log-softmax or sigmoid.

    >>> z = torch.tensor([[1.0, 2.0, 3.0]])
    >>> with LastActivation() as last:
    ...     outputs = torch.sigmoid(z).clamp(0.1)[:, None].squeeze(1)
    >>> last.before(z), last.before(torch.sigmoid(z))
    (None, None)
    >>> with LastActivation() as last:
    ...     outputs = torch.sigmoid(z).clamp(0.1).unsqueeze(1).flatten(1)
    >>> last.before(outputs)
    ('sigmoid', tensor([[1., 2., 3.]]))
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: MutableMapping[Tensor, tuple[str, Tensor]] = WeakIdKeyDictionary()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function, and remember the scores if its result is an activation's, or a view."""
        kwargs = kwargs or {}
        name = str(getattr(func, "__name__", "")).partition(".")[0]
        first = args[0] if args else kwargs.get("input", kwargs.get("tensors"))
        found: tuple[str, Tensor] | None = None
        if name in ENDINGS and isinstance(first, Tensor):
            found = ENDINGS[name], first.clone() if name.endswith("_") else first
        result = func(*args, **kwargs)
        if name in JOINS:
            found = self._joined(func, first, args[1:], kwargs)
        elif isinstance(first, Tensor) and (known := self.before(first)) is not None:
            if name in BOUNDS:
                found = known
            elif name in SAME_ELEMENTS:
                found = known[0], func(known[1], *args[1:], **kwargs)
        if found is not None and isinstance(result, Tensor):
            self._before[result] = found
        return result

    def before(self, outputs: Tensor) -> tuple[str, Tensor] | None:
        """Return what `outputs` are the result of, and the scores before it in the same shape."""
        return self._before.get(outputs)

    def _joined(self, func: Any, parts: Any, rest: Any, kwargs: Any) -> tuple[str, Tensor] | None:
        """Return the concatenated scores, if all parts are results of the same activation."""
        known = [self.before(part) if isinstance(part, Tensor) else None for part in parts]
        kinds = {part and part[0] for part in known}
        if len(kinds) != 1 or None in kinds:
            return None
        scores = [part[1] for part in known if part is not None]
        return kinds.pop() or "", func(scores, *rest, **kwargs)
