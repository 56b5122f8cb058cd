"""FullGrad: what the input and the bias of every layer contribute, added up where they are.

    a = ψ(∇y ⊙ x) + Σ_l Σ_c ψ(∇y_l ⊙ b_l)

Together the parts make up the score exactly (`linear/biases.py`). ψ takes magnitudes, scales them
to [0, 1] for each image and brings them to its size by bilinear interpolation with aligned corners.

    >>> FullGrad(model).attribute(images, target=3).shape
    torch.Size([1, 1, 8, 8])

Srinivas and Fleuret, "Full-Gradient Representation for Neural Network Visualization", NeurIPS 2019.
"""

from torch import Tensor
from torch.nn import functional

from dmbp.attribution.method import Method, Question
from dmbp.errors import InputError
from dmbp.linear.biases import full_gradient


class FullGrad(Method):
    """Contributions of the input and of all biases with a height and a width, never negative."""

    def answer(self, question: Question) -> Tensor:
        """The sum of all maps of some rows."""
        parts = full_gradient(self.network(question))
        if question.inputs.dim() != 4:
            raise InputError(
                "fullgrad needs images of shape (batch, channel, height, width), not "
                f"{tuple(question.inputs.shape)}"
            )
        size = question.inputs.shape[2:]
        total = _scaled(parts.input_gradient * question.inputs).sum(1, keepdim=True)
        for contribution in parts.contributions:
            if contribution.dim() == 4:
                maps = functional.interpolate(
                    _scaled(contribution), size, mode="bilinear", align_corners=True
                )
                total = total + maps.sum(1, keepdim=True)
        return total


def _scaled(contribution: Tensor) -> Tensor:
    """Magnitudes from 0 to 1, over all channels and positions of an image."""
    magnitude = contribution.abs()
    flat = magnitude.flatten(1)
    lowest, highest = (
        edge.view(-1, *(1,) * (magnitude.dim() - 1)) for edge in (flat.amin(1), flat.amax(1))
    )
    # A part that is the same everywhere says nothing about where.
    return (magnitude - lowest) / (highest - lowest).clamp(min=1e-30)
