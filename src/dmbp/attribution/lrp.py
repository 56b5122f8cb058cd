"""LRP: the score is handed back from layer to layer as relevance, until it reaches the pixels.

    R_i = Σ_j  a_i w_ij / (z_j + ε sign z_j)  R_j                               ε-rule
    R_i = Σ_j  (a_i w_ij + γ (a_i w_ij)^s) / (Σ_k a_k w_kj + γ (…)^s)  R_j      γ-rule

(…)^s keeps the contributions that have the sign s of z_j, so that inputs of both signs are allowed;
after ReLUs it is the paper's w + γ w⁺. Dividing relevance by the activation that it belongs to,
m = R / a, turns every rule into the pullback of an affine network with the model's own value at x.
That network is the captured graph, frozen at x:

| step                    | rule                                                                  |
| ----------------------- | --------------------------------------------------------------------- |
| convolution, linear     | ε or γ; a bias takes its share, and so does ε                         |
| batch norm              | an affine map, folded into the convolution before it                  |
| activation              | relevance passes unchanged: a secant through zero                     |
| sum, mean, avg-pool     | in proportion to the summands                                         |
| max-pool                | all to the winner                                                     |
| layer norm              | the deviation is a constant                                           |
| attention, CP-LRP       | probabilities are constants; all goes to the values                   |
| attention, AttnLRP      | half to the values, half through softmax's tangent to queries and keys |

Relevance is conserved: that of the pixels, and what biases and ε absorb, add up to the score. (A
bias is whatever a step returns for zeros: the offset of a saturated ReLU6 and of softmax's tangent
count too.) The relevance of the pixels alone is the score if nothing absorbs any.

    >>> LRP(model, rules="epsilon").attribute(images, target=3).shape
    torch.Size([1, 3, 8, 8])

Bach et al., "On Pixel-Wise Explanations …", PLOS ONE 2015 (ε-rule). Montavon et al., "Layer-Wise
Relevance Propagation: An Overview", 2019 (γ-rule). Ali et al., "XAI for Transformers", ICML 2022
(CP-LRP). Achtibat et al., "AttnLRP", ICML 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from dmbp.attribution.base import LinearMapMethod
from dmbp.baseline import Baseline
from dmbp.engine.plan.rewrites import fold_batch_norm
from dmbp.errors import require_known
from dmbp.linear import Linearizer, LinearNetwork, Question
from dmbp.linear.model.signature import Output
from dmbp.linear.model.wrappers import Model
from dmbp.linear.rules.base import Function
from dmbp.linear.rules.bilinear import BILINEAR
from dmbp.linear.steps import FrozenGraph, LinearStep, Slot, fill
from dmbp.precision import full_precision
from dmbp.validation import check_range

MAX_FACTOR = 1_000_000


@dataclass(frozen=True)
class RelevanceRules:
    """Which rule weighted sums and products have.

    Args:
        gamma: γ at convolutions; 0 takes the ε-rule there too.
        epsilon: ε as a number.
        relative_epsilon: ε as a share of the root mean square of a layer's outputs: of an image's
            for a convolution, of a token's or vector's for a linear layer. It is added to
            `epsilon`, except at convolutions that have γ.
        attention: What products of two activations do: "constant" freezes the factor that weighs
            (CP-LRP), "bilinear" hands half to each (AttnLRP).
    """

    gamma: float = 0.0
    epsilon: float = 0.0
    relative_epsilon: float = 0.0
    attention: Literal["constant", "bilinear"] = "constant"

    def __post_init__(self) -> None:
        for name in ("gamma", "epsilon", "relative_epsilon"):
            check_range(name, getattr(self, name), least=0, most=MAX_FACTOR)
        require_known("attention", self.attention, ("constant", "bilinear"))


RULES: Mapping[str, RelevanceRules] = {
    # The numbers of the tutorial on VGG16 that belongs to Montavon et al.: γ is 0.25 in its lower
    # layers, ε a quarter of the root mean square in its middle ones.
    "epsilon": RelevanceRules(relative_epsilon=0.25),
    "gamma": RelevanceRules(gamma=0.25, relative_epsilon=0.25),
    "cp": RelevanceRules(),
    "attn": RelevanceRules(attention="bilinear"),
}
"""Rules by name."""


class LRP(LinearMapMethod):
    """Layer-wise relevance propagation through the captured graph.

    Args:
        model: The model to explain.
        rules: "epsilon", "gamma" (γ at convolutions, ε at linear layers), "cp" (CP-LRP, neither),
            "attn" (AttnLRP, neither); the next three override its numbers.
        gamma: γ at convolutions.
        epsilon: ε as a number.
        relative_epsilon: ε as a share of the root mean square of a layer's outputs.
        reference: What pixels are compared with: None or "zero", "blur", "mean" or a tensor. Only
            with zero are the attributions relevance.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.

    Raises:
        InputError: If the rules are unknown, or a number is out of range.
    """

    def __init__(
        self,
        model: Model,
        *,
        rules: str = "epsilon",
        gamma: float | None = None,
        epsilon: float | None = None,
        relative_epsilon: float | None = None,
        reference: Baseline = None,
        output: Output = None,
    ) -> None:
        self.rules = _resolve(rules, gamma, epsilon, relative_epsilon)
        overrides = BILINEAR if self.rules.attention == "bilinear" else None
        linearizer = Linearizer(model, smooth="secant", output=output, overrides=overrides)
        self._initialise(model, linearizer)
        self.reference: Baseline = reference

    @staticmethod
    def check_settings(
        *,
        rules: str,
        gamma: float | None,
        epsilon: float | None,
        relative_epsilon: float | None,
        **_: Any,
    ) -> None:
        """Raise an `InputError` if a setting is out of range."""
        _resolve(rules, gamma, epsilon, relative_epsilon)

    def linear_map(self, question: Question) -> Tensor:
        """Return the relevance of each pixel divided by the pixel."""
        return self.network(question).pullback()

    @full_precision()
    def network(self, question: Question) -> LinearNetwork:
        """Return the affine network whose pullback, times the image, is the relevance."""
        net = question.network()
        frozen = fold_batch_norm(net.frozen, into=CONVOLUTIONS)
        frozen = with_relevance_rules(frozen, net.inputs, self.rules)
        return LinearNetwork(frozen, net.inputs, net.rows, exactness=net.exactness)


def _resolve(rules: str, *numbers: float | None) -> RelevanceRules:
    """Return named rules with the numbers that are given in place of theirs."""
    require_known("set of rules", rules, RULES)
    names = ("gamma", "epsilon", "relative_epsilon")
    given = {k: v for k, v in zip(names, numbers, strict=True) if v is not None}
    return replace(RULES[rules], **given)


@dataclass(frozen=True)
class WeightedSum:
    """An operation that multiplies activations with a weight and adds a bias.

    `read`, `weight` and `bias` are the positions of its arguments; `bias` is None without one.
    """

    read: int = 0
    weight: int = 1
    bias: int | None = 2
    is_convolution: bool = False


def _convolutions(names: str) -> dict[str, WeightedSum]:
    return {f"aten.{name}": WeightedSum(is_convolution=True) for name in names.split()}


CONVOLUTIONS: Mapping[str, WeightedSum] = _convolutions(
    "conv1d.default conv1d.padding conv2d.default conv2d.padding conv3d.default conv3d.padding"
)
"""Those that batch norm is folded into."""

WEIGHTED_SUMS: Mapping[str, WeightedSum] = {
    **CONVOLUTIONS,
    **_convolutions("conv_transpose1d.default conv_transpose2d.input conv_transpose3d.input"),
    "aten.linear.default": WeightedSum(),
    "aten.addmm.default": WeightedSum(1, 2, 0),
    "aten.mm.default": WeightedSum(bias=None),
    "aten.matmul.default": WeightedSum(bias=None),
}


@torch.no_grad()
def with_relevance_rules(frozen: FrozenGraph, inputs: Tensor, rules: RelevanceRules) -> FrozenGraph:
    """Return the same graph with weighted sums whose pullback hands relevance back by these rules.

    Args:
        frozen: A network frozen at the inputs, with batch norms folded.
        inputs: The inputs.
        rules: The rules.
    """
    if rules.gamma == rules.epsilon == rules.relative_epsilon == 0:
        return frozen
    slots: dict[int, Any] = {0: inputs}
    steps: list[LinearStep] = []
    for step in frozen.steps:
        result = step.apply(slots)
        weighted = WEIGHTED_SUMS.get(step.operation)
        if weighted is not None and _multiplies_by_weight(step, weighted):
            step = replace(step, function=_ruled(step, weighted, slots, result, rules))
        steps.append(step)
        slots[step.output] = result
        for index in step.finished:
            del slots[index]
    return replace(frozen, steps=tuple(steps))


def _multiplies_by_weight(step: LinearStep, weighted: WeightedSum) -> bool:
    """Return whether a weight is constant; a matrix product may mix activations by activations."""
    read, weight = step.arguments[weighted.read], step.arguments[weighted.weight]
    if not isinstance(read, Slot) or not isinstance(weight, Tensor):
        return False
    return weighted.is_convolution or weight.dim() <= 2


@dataclass(frozen=True)
class RuledSum:
    """A weighted sum z that returns share · (z + γ z^s) + rest, which is z at x.

    z^s has the contributions of the same sign as z at x. `share` is what the rule's denominator
    leaves of relevance, and `rest` is what ε absorbs.
    """

    function: Function
    weighted: WeightedSum
    gamma: float
    is_positive: Tensor
    read_positive: Tensor
    share: Tensor
    rest: Tensor

    def __call__(self, *arguments: Any, **keywords: Any) -> Tensor:
        """Evaluate the sum at other activations."""
        return self.share * self.favoured(arguments, keywords) + self.rest

    def favoured(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Tensor:
        """Return z + γ z^s."""
        total = self.function(*arguments, **keywords)
        if not self.gamma:
            return total
        read = arguments[self.weighted.read]
        parts = (read * self.read_positive, read * ~self.read_positive)
        has_negative = not bool(self.read_positive.all())

        def of_sign(sign: int) -> Tensor:
            """Return the sum of the contributions of one sign, and of the bias if it has it."""
            found = self._sum(arguments, keywords, parts[0], sign, with_bias=True)
            if has_negative:
                found = found + self._sum(arguments, keywords, parts[1], -sign, with_bias=False)
            return found

        return total + self.gamma * torch.where(self.is_positive, of_sign(1), of_sign(-1))

    def _sum(
        self,
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
        read: Tensor,
        sign: int,
        *,
        with_bias: bool,
    ) -> Tensor:
        """Return the sum over some activations with the weights, and the bias, of one sign."""
        changed = list(arguments)
        place = self.weighted
        changed[place.read], changed[place.weight] = read, _of_sign(arguments[place.weight], sign)
        if place.bias is not None and place.bias < len(changed) and changed[place.bias] is not None:
            bias = changed[place.bias]
            changed[place.bias] = _of_sign(bias, sign) if with_bias else torch.zeros_like(bias)
        return self.function(*changed, **keywords)


def _ruled(
    step: LinearStep,
    weighted: WeightedSum,
    slots: Mapping[int, Any],
    result: Tensor,
    rules: RelevanceRules,
) -> RuledSum:
    """Return the weighted sum of a step, whose result at x is given, under rules."""
    arguments = tuple(fill(step.arguments, slots))
    keywords = {name: fill(value, slots) for name, value in step.keywords.items()}
    read = arguments[weighted.read]
    gamma = rules.gamma if weighted.is_convolution else 0.0
    plain = RuledSum(
        step.function, weighted, gamma, result > 0, read >= 0,
        torch.ones_like(result), torch.zeros_like(result),
    )  # fmt: skip
    favoured = plain.favoured(arguments, keywords)
    dims = tuple(range(1, result.dim())) if weighted.is_convolution else (-1,)
    epsilon = rules.epsilon
    if not gamma:
        size = result.square().mean(dims, keepdim=True).sqrt()
        epsilon = epsilon + rules.relative_epsilon * size
    denominator = favoured.abs() + epsilon
    share = torch.where(denominator > 0, result.abs() / denominator, 0)
    return replace(plain, share=share, rest=result - share * favoured)


def _of_sign(tensor: Tensor, sign: int) -> Tensor:
    return tensor.clamp(min=0) if sign > 0 else tensor.clamp(max=0)
