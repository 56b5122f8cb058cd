"""DeepLift with the Rescale rule: how each pixel's change from a baseline changes the score.

    a = m ⊙ (x − x₀)        Σ a = y(x) − y(x₀), exactly

m is the pullback of the network whose activations are replaced by their secants between the
baseline and the image (`linear/freeze/secants.py`). Functional and reused activations are therefore
included; implementations that use hooks miss them or raise an error.

    >>> DeepLift(model).attribute(images, target=3).shape
    torch.Size([1, 3, 8, 8])

Shrikumar, Greenside and Kundaje, "Learning Important Features Through Propagating Activation
Differences", ICML 2017.
"""

from __future__ import annotations

from torch import Tensor

from dmbp.attribution.base import LinearMapMethod
from dmbp.baseline import baseline_for
from dmbp.linear import Question


class DeepLift(LinearMapMethod):
    """Multipliers of the Rescale rule between a baseline and the image.

    The baseline is zero or the `baselines` passed to `attribute`. A `reference` changes only the
    (x − reference) that the multipliers are multiplied by.

    Args:
        model: The model to explain.
        reference: What pixels are compared with: None or "zero", "blur", "mean" or a tensor.
        generator: Not used by this method.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.
    """

    def linear_map(self, question: Question) -> Tensor:
        """Return the multipliers of each row."""
        baselines = baseline_for(question.inputs, question.baselines)
        return question.linearizer.freeze_between(
            question.inputs, question.outputs, baselines, question.rows
        ).pullback()
