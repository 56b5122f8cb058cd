"""Turns outputs into probabilities, and detects outputs that are probabilities already."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

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


aten = torch.ops.aten

PRODUCING = {aten.sigmoid.default, aten.sigmoid_.default, aten._softmax.default}
"""Operations whose results are probabilities."""

BOUNDING = {aten.clamp.default, aten.clamp_.default, aten.clamp_min.default, aten.clamp_max.default}
"""Operations whose results are probabilities if their inputs are."""


class ProbabilityTracker(TorchDispatchMode):
    """A context that remembers the last probabilities computed inside it.

    >>> with ProbabilityTracker() as tracker:
    ...     outputs = torch.sigmoid(torch.zeros(1, 3)).clamp(0.1)[:, None].flatten(1)
    >>> tracker.produced(outputs), tracker.produced(outputs * 2)
    (True, False)
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: Tensor | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, and remember its result if it consists of probabilities."""
        bounded = func in BOUNDING and self.produced(args[0])
        result = func(*args, **(kwargs or {}))
        if bounded or func in PRODUCING:
            self._last = result
        return result

    def produced(self, outputs: Tensor) -> bool:
        """Return whether `outputs` are the last probabilities, in any shape."""
        last = self._last
        if last is None or last.numel() != outputs.numel():
            return False
        return last.data_ptr() == outputs.data_ptr()
