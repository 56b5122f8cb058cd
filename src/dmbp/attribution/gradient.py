"""Grad: the gradient of the score, times the image. The paper's ablation calls it ND.

    a = ∇y ⊙ (x − reference)

Signed, unlike Captum's `Saliency`, which takes magnitudes. It is what autograd gives: a path that
the model detaches does not count here, nor in the methods that add gradients up; it does in
`dmbp.linearize(model, images).pullback()` and in the methods built on it.

    >>> Gradient(model).attribute(images, target=3).shape
    torch.Size([1, 3, 8, 8])

Simonyan, Vedaldi and Zisserman, "Deep Inside Convolutional Networks", ICLR workshop 2014.
"""

from torch import Tensor

from dmbp.attribution.method import LinearMapMethod, Question
from dmbp.attribution.points import gradients


class Gradient(LinearMapMethod):
    """The gradient of the score in the pixels."""

    def linear_map(self, question: Question) -> Tensor:
        """∇y of some rows."""
        return gradients(question.linearizer, question.inputs, question.rows)
