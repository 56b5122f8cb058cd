"""Whether a model's outputs are probabilities already: what a sigmoid or a softmax put out."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dmbp.linear import Linearizer
from dmbp.models.classifier import Classifier


def outputs_of(classifier: Classifier, inputs: Tensor) -> tuple[Tensor, Classifier]:
    """What a model puts out, and the classifier, which then knows if these are probabilities."""
    with ProbabilityWatch() as watch:
        outputs = Linearizer(classifier.module).outputs(inputs)
    if watch.made(outputs):
        classifier = replace(classifier, activation="none")
    return outputs, classifier


aten = torch.ops.aten

MAKING = {aten.sigmoid.default, aten.sigmoid_.default, aten._softmax.default}
KEEPING = {aten.clamp.default, aten.clamp_.default, aten.clamp_min.default, aten.clamp_max.default}
"""Operations whose results are probabilities; and those that leave them so, within bounds."""


class ProbabilityWatch(TorchDispatchMode):
    """Sees the last probabilities that are computed inside it.

    >>> with ProbabilityWatch() as watch:
    ...     outputs = torch.sigmoid(torch.zeros(1, 3)).clamp(0.1)[:, None].flatten(1)
    >>> watch.made(outputs), watch.made(outputs * 2)
    (True, False)
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: Tensor | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Compute, and keep what are probabilities."""
        bounded = func in KEEPING and self.made(args[0])
        result = func(*args, **(kwargs or {}))
        if bounded or func in MAKING:
            self._last = result
        return result

    def made(self, outputs: Tensor) -> bool:
        """Whether these numbers are those probabilities, in whatever shape."""
        last = self._last
        if last is None or last.numel() != outputs.numel():
            return False
        return last.data_ptr() == outputs.data_ptr()
