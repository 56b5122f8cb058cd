"""Guided GradCAM: guided backpropagation inside GradCAM's regions, their product.

    >>> GuidedGradCAM(model).attribute(images, target=3).shape
    torch.Size([1, 3, 8, 8])

Selvaraju et al., "Grad-CAM", ICCV 2017.
"""

from torch import Tensor

from dmbp.attribution.gradcam import GradCAM
from dmbp.attribution.guided_backprop import GuidedBackprop
from dmbp.attribution.method import LinearMapMethod, Question
from dmbp.decompose.reference import Reference
from dmbp.linear.model import Model
from dmbp.linear.outputs import Output


class GuidedGradCAM(LinearMapMethod):
    """The product of both maps; `layer` is GradCAM's."""

    def __init__(
        self,
        model: Model,
        *,
        layer: str | None = None,
        reference: Reference = None,
        output: Output = None,
    ) -> None:
        super().__init__(model, reference=reference, output=output)
        self._guided = GuidedBackprop(model)
        self._regions = GradCAM(model, layer=layer)

    def linear_map(self, question: Question) -> Tensor:
        """The guided gradient of some rows, weighted by region."""
        return self._guided.linear_map(question) * self._regions.answer(question)
