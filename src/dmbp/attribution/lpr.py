"""LPR: learned propagation rules, which scale gradients so that the map keeps what the score needs.

The authors published no code; this follows our reading of their paper. Every element of every
activation has a rule r, which scales the gradient that passes back through it. The resulting map,
softly thresholded, masks the image:

    m(r)  = pullback through r                  r = 1 is the plain gradient
    M(r)  = sigmoid((a − mean a) / (τ · deviation of a))       a = Σ_c m ⊙ x, for each image
    x(r)  = M ⊙ x + (1 − M) ⊙ background        a blurred copy, as for the insertion metric
    loss  = ((y(x(r)) − y(x)) / s)² + λ · mean M               s: deviation of the outputs

The paper leaves the background open. With zero instead of a blurred copy, the maps of a ResNet50
are no better than the gradient's (insertion 0.45 against 0.57 on ten photographs). The rules are
learned by Adam through the second derivative. The attribution is m at the learned rules, times x.

    >>> LPR(model, iterations=3).attribute(images, target=3).shape
    torch.Size([1, 3, 8, 8])

Yang et al., "Learning Propagation Rules for Attribution Map Generation", ECCV 2020.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dmbp.attribution.base import LinearMapMethod
from dmbp.attribution.gradient import scores
from dmbp.baseline import Baseline, baseline_for
from dmbp.errors import CaptureError, InputError
from dmbp.linear import LinearNetwork, Question, Site
from dmbp.linear.model.signature import Output
from dmbp.linear.model.wrappers import Model
from dmbp.linear.network import NO_SITES
from dmbp.validation import MAX_REPETITIONS, check_range

MAX_LEARNING_RATE = 1000
MAX_WEIGHT = 1_000_000


class LPR(LinearMapMethod):
    """The gradient under propagation rules that Adam learns for each image.

    Args:
        model: The model to explain.
        iterations: How many steps Adam takes; 0 gives the plain gradient.
        learning_rate: Adam's learning rate.
        area: The price of a large mask, λ in the formula.
        softness: How softly the map is thresholded, τ in the formula.
        background: What masked pixels show: None or "zero", "blur", "mean" or a tensor.
        reference: What pixels are compared with: None or "zero", "blur", "mean" or a tensor.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.

    Raises:
        InputError: If a number is out of range: `iterations` is at most 10,000, `learning_rate`
            1000, and `area` and `softness` a million.
    """

    def __init__(
        self,
        model: Model,
        *,
        iterations: int = 20,
        learning_rate: float = 0.1,
        area: float = 1.0,
        softness: float = 0.1,
        background: Baseline = "blur",
        reference: Baseline = None,
        output: Output = None,
    ) -> None:
        super().__init__(model, reference=reference, output=output)
        self.check_settings(
            iterations=iterations, learning_rate=learning_rate, area=area, softness=softness
        )
        self.iterations = iterations
        self.learning_rate = learning_rate
        self.area = area
        self.softness = softness
        self.background: Baseline = background

    @staticmethod
    def check_settings(
        *, iterations: int, learning_rate: float, area: float, softness: float, **_: Any
    ) -> None:
        """Raise an `InputError` if a setting is out of range."""
        check_range("iterations", iterations, least=0, most=MAX_REPETITIONS)
        check_range("area", area, least=0, most=MAX_WEIGHT)
        if not 0 < learning_rate <= MAX_LEARNING_RATE or not 0 < softness <= MAX_WEIGHT:
            raise InputError(
                f"learning_rate must be above 0 and at most {MAX_LEARNING_RATE:,}, softness above "
                f"0 and at most {MAX_WEIGHT:,}, not {learning_rate, softness}"
            )

    @torch.enable_grad()
    def linear_map(self, question: Question) -> Tensor:
        """Return the pullback for each row, under the rules learned for it."""
        net = question.network()
        if not net.sites:
            raise CaptureError(NO_SITES)
        dtype = torch.promote_types(net.inputs.dtype, torch.float32)
        rules = {
            site.name: torch.zeros(
                site.shape, dtype=dtype, device=net.inputs.device, requires_grad=True
            )
            for site in net.sites
        }
        self._learn(rules, net, question)
        return _pullback(net, rules, differentiable=False)

    def _learn(self, rules: dict[str, Tensor], net: LinearNetwork, question: Question) -> None:
        """Lower the rows' loss by changing the rules in place."""
        optimiser = torch.optim.Adam(list(rules.values()), lr=self.learning_rate)
        for _ in range(self.iterations):
            loss = self._loss(_pullback(net, rules, differentiable=True), question)
            gradients = torch.autograd.grad(
                loss.sum(), list(rules.values()), allow_unused=True, materialize_grads=True
            )
            for rule, gradient in zip(rules.values(), gradients, strict=True):
                rule.grad = gradient
            optimiser.step()

    def _loss(self, linear_map: Tensor, question: Question) -> Tensor:
        """Return each row's loss: how the mask changes the score, plus the price of its area."""
        inputs, outputs, rows = question.inputs, question.outputs, question.rows
        mask = self._mask(linear_map * inputs)
        background = question.baseline_of_rows(self.background) if inputs.dim() == 4 else None
        background = baseline_for(inputs, background)
        masked = mask * inputs + (1 - mask) * background
        change = scores(question.runner, masked, rows) - rows.scores(outputs)
        scale = outputs.std(1) if outputs.shape[1] > 1 else outputs.abs().amax(1)
        return (change / scale.clamp(min=1e-6)) ** 2 + self.area * mask.flatten(1).mean(1)

    def _mask(self, attribution: Tensor) -> Tensor:
        """Return a mask: near one at pixels above the image's average, near zero elsewhere."""
        pixels = attribution.sum(1, keepdim=True) if attribution.dim() > 2 else attribution
        flat = pixels.flatten(1)
        centred = flat - flat.mean(1, keepdim=True)
        deviation = (centred.square().mean(1, keepdim=True) + 1e-30).sqrt()  # a map may be zero
        return torch.sigmoid(centred / (self.softness * deviation)).view_as(pixels)


class _ScaledGradient(torch.autograd.Function):
    """The identity; in the backward pass, the gradient is multiplied by the rule."""

    @staticmethod
    def forward(ctx: Any, activation: Tensor, rule: Tensor) -> Tensor:
        """Return the activation unchanged."""
        ctx.save_for_backward(rule)
        return activation.view_as(activation)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Scale the gradient; the rule itself is learned only through the second derivative."""
        (rule,) = ctx.saved_tensors
        return gradients[0] * rule, None


def _pullback(net: LinearNetwork, rules: dict[str, Tensor], *, differentiable: bool) -> Tensor:
    def at_site(site: Site, streams: list[Tensor]) -> list[Tensor]:
        rule = 2 * torch.sigmoid(rules[site.name])
        return [_ScaledGradient.apply(stream, rule.to(stream.dtype)) for stream in streams]

    inputs = net.inputs.detach().requires_grad_()
    (score,) = net.propagate([inputs], at_site)
    return torch.autograd.grad(score.sum(), inputs, create_graph=differentiable)[0]
