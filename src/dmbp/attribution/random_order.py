"""Random: pixels in random order, the yardstick that every other method should beat.

>>> RandomOrder(model).attribute(images, target=3).shape
torch.Size([1, 1, 8, 8])
"""

import torch
from torch import Tensor

from dmbp.attribution.base import Method
from dmbp.linear import Question


class RandomOrder(Method):
    """Noise that does not depend on the model, the same for every image.

    Args:
        model: The model to explain.
        generator: Source of a new seed at every call; without one, every call draws the same.
        output: Which of several things that the model returns is explained: a name, a position or
            a function of what it returns.
    """

    def answer(self, question: Question) -> Tensor:
        """Return normal noise for some rows."""
        inputs = question.inputs
        shape = (1, *inputs.shape[2:]) if inputs.dim() == 4 else inputs.shape[1:]
        noise = torch.randn(shape, generator=question.generator()).to(inputs)
        return noise.expand(len(inputs), *shape).clone()
