"""Random: pixels in random order, the yardstick that any other method should beat.

>>> RandomOrder(model).attribute(images, target=3).shape
torch.Size([1, 1, 8, 8])
"""

import torch
from torch import Tensor

from dmbp.attribution.base import Method, Question


class RandomOrder(Method):
    """Noise that knows nothing of the model; the same for every image."""

    def answer(self, question: Question) -> Tensor:
        """Normal noise for some rows."""
        inputs = question.inputs
        shape = (1, *inputs.shape[2:]) if inputs.dim() == 4 else inputs.shape[1:]
        noise = torch.randn(shape, generator=question.generator()).to(inputs)
        return noise.expand(len(inputs), *shape).clone()
