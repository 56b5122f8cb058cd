"""Integrated gradients: the gradient averaged along the straight line from a baseline.

    a = (x − x₀) ⊙ ∫₀¹ ∇y(x₀ + t (x − x₀)) dt       Σ a ≈ y(x) − y(x₀)

    >>> IntegratedGradients(model, steps=20).attribute(images, target=3).shape
    torch.Size([1, 3, 8, 8])

Sundararajan, Taly and Yan, "Axiomatic Attribution for Deep Networks", ICML 2017. Captum computes
the integral.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dmbp.attribution.base import LinearMapMethod
from dmbp.attribution.gradient import scores
from dmbp.baseline import Baseline, baseline_for
from dmbp.linear import Question
from dmbp.linear.model.signature import Output
from dmbp.linear.model.wrappers import Model
from dmbp.validation import check_range

MAX_STEPS = 1000
"""Captum places n steps by the eigenvalues of an n × n matrix."""


class IntegratedGradients(LinearMapMethod):
    """Gradients averaged over points on the line from a baseline to the image.

    The baseline is zero or the `baselines` passed to `attribute`. A `reference` changes only the
    (x − reference) that the average is multiplied by, not where the line starts.

    Args:
        model: The model to explain.
        steps: How many points the average is taken over.
        reference: What pixels are compared with: None or "zero", "blur", "mean" or a tensor.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.

    Raises:
        InputError: If `steps` is below 1 or above 1000.
    """

    runs_many_points = True

    def __init__(
        self,
        model: Model,
        *,
        steps: int = 50,
        reference: Baseline = None,
        output: Output = None,
    ) -> None:
        super().__init__(model, reference=reference, output=output)
        self.check_settings(steps=steps)
        self.steps = steps

    @staticmethod
    def check_settings(*, steps: int, **_: Any) -> None:
        """Raise an `InputError` if a setting is out of range."""
        check_range("steps", steps, least=1, most=MAX_STEPS)

    def linear_map(self, question: Question) -> Tensor:
        """Return the average gradient for each row."""
        from captum.attr import IntegratedGradients as CaptumIntegratedGradients  # it is slow

        def score(points: Tensor, row: Tensor) -> Tensor:
            return scores(question.runner, points, question.rows.pick(row.tolist()))

        along = CaptumIntegratedGradients(score, multiply_by_inputs=False)
        rows = len(question.rows)
        average: Tensor = along.attribute(
            question.inputs,
            baseline_for(question.inputs, question.baselines),
            additional_forward_args=(question.inputs.new_tensor(range(rows)).long(),),
            n_steps=self.steps,
            internal_batch_size=max(question.batch_size, rows),
        )
        return average.to(question.inputs.dtype)  # Captum weights its steps in float32
