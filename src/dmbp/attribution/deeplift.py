"""DeepLift with the Rescale rule: what changes between a baseline and the image, and through whom.

    a = m ⊙ (x − x₀)        Σ a = y(x) − y(x₀), exactly

m is the pullback of the network whose activations are replaced by their secants between image and
baseline (`linear/secant.py`), so functional and reused activations count, where implementations by
hooks raise or miss them.

    >>> DeepLift(model).attribute(images, target=3).shape
    torch.Size([1, 3, 8, 8])

Shrikumar, Greenside and Kundaje, "Learning Important Features Through Propagating Activation
Differences", ICML 2017.
"""

from torch import Tensor

from dmbp.attribution.base import LinearMapMethod, Question
from dmbp.baseline import baseline_for


class DeepLift(LinearMapMethod):
    """Multipliers of the Rescale rule, from a baseline of zero or the `baselines` given.

    A `reference` changes what the multipliers are multiplied with, not where they start.
    """

    def linear_map(self, question: Question) -> Tensor:
        """The multipliers of some rows."""
        baselines = baseline_for(question.inputs, question.baselines)
        return question.linearizer.between(
            question.inputs, question.outputs, baselines, question.rows
        ).pullback()
