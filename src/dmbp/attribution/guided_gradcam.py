"""Guided GradCAM: the guided gradient times GradCAM's regions.

    >>> GuidedGradCAM(model).attribute(images, target=3).shape
    torch.Size([1, 3, 8, 8])

Selvaraju et al., "Grad-CAM", ICCV 2017.
"""

from torch import Tensor

from dmbp.attribution.base import LinearMapMethod
from dmbp.attribution.gradcam import GradCAM
from dmbp.attribution.guided_backprop import GuidedBackprop
from dmbp.baseline import Baseline
from dmbp.linear import Question
from dmbp.linear.model.signature import Output
from dmbp.linear.model.wrappers import Model


class GuidedGradCAM(LinearMapMethod):
    """The product of guided backpropagation's map and GradCAM's.

    Args:
        model: The model to explain.
        layer: The module whose output GradCAM weighs; by default the last stage.
        reference: What pixels are compared with: None or "zero", "blur", "mean" or a tensor.
        output: Which of several things that the model returns is explained: a name, a position or
            a function of what it returns.
    """

    def __init__(
        self,
        model: Model,
        *,
        layer: str | None = None,
        reference: Baseline = None,
        output: Output = None,
    ) -> None:
        super().__init__(model, reference=reference, output=output)
        self._guided = GuidedBackprop(model)
        self._regions = GradCAM(model, layer=layer)

    def linear_map(self, question: Question) -> Tensor:
        """Return the guided gradient of some rows, weighted by region."""
        return self._guided.linear_map(question) * self._regions.answer(question)
