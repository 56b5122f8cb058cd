"""From a model's outputs to probabilities."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dmbp.errors import InputError, require_known

Activation = Literal["softmax", "sigmoid", "none"] | Callable[[Tensor], Tensor]
"""By name, or a function of outputs (…, classes)."""


def _softmax(outputs: Tensor) -> Tensor:
    """Over the classes; a single output is a yes or no, and softmax would make it 1."""
    return outputs.softmax(-1) if outputs.shape[-1] > 1 else outputs.sigmoid()


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": _softmax,  # one class is right
    "sigmoid": torch.sigmoid,  # several may be
    "none": lambda outputs: outputs,  # probabilities already
}


def activation_function(activation: Activation) -> Callable[[Tensor], Tensor]:
    """The function that an activation stands for."""
    if callable(activation):
        return activation
    if not isinstance(activation, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"an activation is a name or a function, not {activation!r}")
    require_known("activation", activation, ACTIVATIONS)
    return ACTIVATIONS[activation]


aten = torch.ops.aten

MAKING = {aten.sigmoid.default, aten.sigmoid_.default, aten._softmax.default}
KEEPING = {aten.clamp.default, aten.clamp_.default, aten.clamp_min.default, aten.clamp_max.default}
"""Operations whose results are probabilities; and those that leave them so, within bounds."""


class ProbabilityTracker(TorchDispatchMode):
    """Sees the last probabilities that are computed inside it.

    >>> with ProbabilityTracker() as watch:
    ...     outputs = torch.sigmoid(torch.zeros(1, 3)).clamp(0.1)[:, None].flatten(1)
    >>> watch.produced(outputs), watch.produced(outputs * 2)
    (True, False)
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: Tensor | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Compute, and keep what are probabilities."""
        bounded = func in KEEPING and self.produced(args[0])
        result = func(*args, **(kwargs or {}))
        if bounded or func in MAKING:
            self._last = result
        return result

    def produced(self, outputs: Tensor) -> bool:
        """Whether these numbers are those probabilities, in whatever shape."""
        last = self._last
        if last is None or last.numel() != outputs.numel():
            return False
        return last.data_ptr() == outputs.data_ptr()
