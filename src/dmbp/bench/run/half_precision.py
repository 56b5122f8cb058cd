"""Runs the masked images of metrics in 16 bits, several times as fast as the model on a GPU."""

import torch
from torch import Tensor, nn

from dmbp.engine import fast_forward
from dmbp.errors import DMBPError
from dmbp.linear import Linearizer
from dmbp.linear.model.runner import ModelRunner
from dmbp.models import Classifier


class HalfPrecision(nn.Module):
    """A model that computes in 16 bits and returns float32, for scores that are averaged.

    It is the captured model's fast forward pass where there is one, which is float16 on NVIDIA's
    GPUs with bfloat16 in its place after an overflow; else the model under autocast to bfloat16. A
    model that ends in an activation runs under autocast, because its captured form lacks that one.

    Args:
        classifier: The model, in float32.
        example: Two inputs or more.
    """

    def __init__(self, classifier: Classifier, example: Tensor) -> None:
        super().__init__()
        self.inner = classifier.module
        self._run = None
        if example.is_cuda and not _ends_in_activation(classifier.module, example):
            try:
                linearizer = Linearizer(classifier.module)
                linearizer.linearize(example, target=0)
                captured = linearizer.captured_graph(example)
                self._run = None if captured is None else fast_forward(captured, example)
            except DMBPError:  # a model that cannot be captured still runs
                return

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the model's outputs."""
        if self._run is not None:
            return self._run(inputs).float()
        with torch.autocast(inputs.device.type, torch.bfloat16):
            return self.inner(inputs).float()


def _ends_in_activation(module: nn.Module, example: Tensor) -> bool:
    runner = ModelRunner(module)
    runner.outputs(example)
    form = runner.form(example)
    return form is not None and form.activation is not None
