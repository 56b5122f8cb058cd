"""Whether a model's outputs are probabilities already: what a sigmoid put out, as it is."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dmbp.linear import Linearizer
from dmbp.models.classifier import Classifier


def outputs_of(classifier: Classifier, inputs: Tensor) -> tuple[Tensor, Classifier]:
    """What a model puts out, and the classifier, which then knows if these are probabilities."""
    with SigmoidWatch() as watch:
        outputs = Linearizer(classifier.module).outputs(inputs)
    if watch.made(outputs):
        classifier = replace(classifier, activation="none")
    return outputs, classifier


class SigmoidWatch(TorchDispatchMode):
    """Sees the last sigmoid that is computed inside it.

    >>> with SigmoidWatch() as watch:
    ...     outputs = torch.sigmoid(torch.zeros(1, 3))[:, None].flatten(1)
    >>> watch.made(outputs), watch.made(outputs * 2)
    (True, False)
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: Tensor | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Compute, and keep what a sigmoid gives."""
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.sigmoid.default, torch.ops.aten.sigmoid_.default):
            self._last = result
        return result

    def made(self, outputs: Tensor) -> bool:
        """Whether these numbers are that sigmoid's, in whatever shape."""
        last = self._last
        if last is None or last.numel() != outputs.numel():
            return False
        return last.data_ptr() == outputs.data_ptr()
