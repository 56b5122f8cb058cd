"""LRP against the papers' formulas, layer by layer, and its conservation on every network."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dmbp.attribution import METHODS
from dmbp.attribution.fullgrad import full_gradient
from dmbp.attribution.lrp import LRP
from dmbp.errors import InputError
from dmbp.linear import linearize
from dmbp.linear.lines import NEAR_ZERO
from tests import nets
from tests.attribution.networks import TARGET, attribute, captures, images
from tests.attribution.token_networks import TOKEN_NETWORKS
from tests.tolerance import FLOAT64, relative

NAMES = ("lrp_epsilon", "lrp_gamma", "cp_lrp", "attn_lrp")


class Block(nn.Module):
    """A convolution with batch norm, a residual sum, max-pooling and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.second = nn.Conv2d(6, 6, 3, padding=1)
        self.wide, self.last = nn.Linear(96, 10), nn.Linear(10, 5)
        nets.randomise_statistics(self)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = functional.max_pool2d(torch.relu(self.second(x) + x), 4)
        return self.last(torch.relu(self.wide(x.flatten(1))))


Rule = Callable[[nn.Module, Tensor, Tensor], Tensor]


def by_contributions(gamma: float, epsilon: float, relative_epsilon: float) -> Rule:
    """The rule written with every contribution a_i w_ij: the layer as one dense matrix."""

    def rule(layer: nn.Module, a: Tensor, relevance: Tensor) -> Tensor:
        rows = []
        for own, handed in zip(a, relevance, strict=True):
            zero = torch.zeros_like(own)[None]
            bias = layer(zero)[0].flatten()
            weights = torch.func.jacrev(lambda x: layer(x[None])[0].flatten())(own).flatten(1)
            parts = weights * own.flatten()  # (outputs, inputs): what i contributes to j
            z = parts.sum(1) + bias
            g = gamma if isinstance(layer, nn.Conv2d) else 0.0
            same = torch.where((z > 0)[:, None], parts.clamp(min=0), parts.clamp(max=0))
            same_bias = torch.where(z > 0, bias.clamp(min=0), bias.clamp(max=0))
            parts, total = parts + g * same, z + g * (same.sum(1) + same_bias)
            size = 0.0 if g else relative_epsilon * z.square().mean().sqrt()
            stabilised = total + (epsilon + size) * z.sign()
            shares = torch.where(stabilised[:, None] != 0, parts / stabilised[:, None], 0.0)
            rows.append((shares.T @ handed.flatten()).view(own.shape))
        return torch.stack(rows)

    return rule


def relevance_by_hand(model: Block, x: Tensor, rule: Rule) -> Tensor:
    folded = nn.Conv2d(3, 6, 3, padding=1).double()  # batch norm is an affine map
    scale = model.norm.weight / (model.norm.running_var + model.norm.eps).sqrt()
    folded.weight.data = model.first.weight * scale[:, None, None, None]
    folded.bias.data = (model.first.bias - model.norm.running_mean) * scale + model.norm.bias
    a = torch.relu(folded(x))
    branch = model.second(a)
    b = torch.relu(branch + a)
    pooled, winners = functional.max_pool2d(b, 4, return_indices=True)
    hidden = torch.relu(model.wide(pooled.flatten(1)))
    outputs = model.last(hidden)
    relevance = outputs * functional.one_hot(torch.tensor(TARGET), 5)
    relevance = rule(model.last, hidden, relevance)
    relevance = rule(model.wide, pooled.flatten(1), relevance).view_as(pooled)
    relevance = functional.max_unpool2d(relevance, winners, 4)
    share = torch.where(b > 0, relevance / b, 0.0)  # in proportion to the summands
    of_a = share * a + rule(model.second, a, share * branch)
    return rule(folded, x, of_a).detach()


@pytest.mark.parametrize(
    "numbers", [(0.0, 0.1, 0.0), (0.0, 0.0, 0.25), (0.25, 0.0, 0.25), (1.5, 0.01, 0.0)]
)
def test_the_formula(numbers: tuple[float, float, float]) -> None:
    model, inputs = Block().double().eval(), images()
    expected = relevance_by_hand(model, inputs, by_contributions(*numbers))
    settings = dict(zip(("gamma", "epsilon", "relative_epsilon"), numbers, strict=True))
    assert relative(attribute("lrp_epsilon", model, inputs, **settings), expected) <= FLOAT64


def absorbed(method: LRP, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The relevance of the pixels plus what biases and ε absorb, and the scores."""
    (question,) = method.questions(inputs, TARGET)
    net = method.network(question)
    parts = full_gradient(net)
    total = (parts.input_gradient * inputs).flatten(1).sum(1) + parts.constant
    for part in parts.contributions:
        total = total + part.flatten(1).sum(1).unflatten(0, (3, -1)).sum(1)
    return total.detach(), question.rows.scores(question.outputs)


@pytest.mark.parametrize("net", nets.IMAGE_NETWORKS)
def test_conservation(net: type[nn.Module]) -> None:
    """Pixels and absorbed relevance add up to the score, and pixels alone without any bias."""
    model, inputs = net().double().eval(), images()
    for name in NAMES:
        method = METHODS[name](model)
        method.linearizer.share_captures(captures(model))
        found, score = absorbed(method, inputs)
        assert relative(found, score) <= FLOAT64


def test_conservation_without_biases() -> None:
    """With no bias and no ε, every rule keeps all relevance in the pixels."""
    model, inputs = nets.VGGLike().double().eval(), images()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.zero_()
    score = model(inputs)[range(3), TARGET].detach()
    for gamma in (0.0, 0.25, 2.0):
        maps = attribute("cp_lrp", model, inputs, gamma=gamma)
        assert relative(maps.sum((1, 2, 3)), score) <= FLOAT64
    lost = attribute("lrp_epsilon", model, inputs)
    assert relative(lost.sum((1, 2, 3)), score) > 0.1


@pytest.mark.parametrize("net", [nets.TinyViT, nets.SqueezeExciteNet, nets.ResidualNet])
def test_cp_lrp_is_the_pullback_of_secants(net: type[nn.Module]) -> None:
    model, inputs = net().double().eval(), images()
    expected = linearize(model, inputs, target=TARGET, smooth="secant").pullback() * inputs
    assert relative(attribute("cp_lrp", model, inputs), expected) <= FLOAT64


class HalfGradient(torch.autograd.Function):
    """The identity, whose gradient is halved."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient / 2


def secant_of_gelu(z: Tensor) -> Tensor:
    """GELU(z) / z, and the derivative where z is so small that a quotient would be rounding."""
    at = z.clone().requires_grad_()
    derivative = torch.autograd.grad(functional.gelu(at).sum(), at)[0]
    return torch.where(z.abs() < NEAR_ZERO, derivative, functional.gelu(z) / z)


class ModifiedViT(nets.TinyViT):
    """TinyViT with autograd changed as the papers say: gradient times input is the relevance.

    Layer norm's deviation is a constant, and GELU a factor. CP-LRP detaches probabilities; AttnLRP
    halves the gradient of both factors of each product (its Eq. 15), while softmax keeps its own,
    which is its Eq. 13 times the scores.
    """

    is_attn = False

    def forward(self, x: Tensor) -> Tensor:
        half = HalfGradient.apply if self.is_attn else lambda part: part
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        for k in range(2):
            mixed = self.mixes[k](self.norm(2 * k, x))
            parts = mixed.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            query, key, values = parts.unbind(0)
            scores = half(query) @ half(key).transpose(2, 3) / query.shape[-1] ** 0.5
            probabilities = scores.softmax(-1)
            probabilities = half(probabilities) if self.is_attn else probabilities.detach()
            x = x + self.outs[k]((probabilities @ half(values)).transpose(1, 2).flatten(2))
            z = self.wide[k](self.norm(2 * k + 1, x))
            line = z * secant_of_gelu(z.detach())
            x = x + self.narrow[k](line + (functional.gelu(z) - line).detach())
        return self.head(self.norm(4, x)[:, 0])

    def norm(self, k: int, x: Tensor) -> Tensor:
        layer = self.norms[k]
        moved = x - x.mean(-1, keepdim=True)
        deviation = (moved.square().mean(-1, keepdim=True) + layer.eps).sqrt().detach()
        return moved / deviation * layer.weight + layer.bias


@pytest.mark.parametrize("name", ["cp_lrp", "attn_lrp"])
def test_rules_of_transformers(name: str) -> None:
    model, modified = nets.TinyViT().double().eval(), ModifiedViT().double().eval()
    modified.load_state_dict(model.state_dict())
    modified.is_attn = name == "attn_lrp"
    inputs = images().requires_grad_()
    score = modified(inputs)[range(3), TARGET].sum()
    expected = torch.autograd.grad(score, inputs)[0] * inputs.detach()
    assert relative(attribute(name, model, inputs.detach()), expected) <= FLOAT64


def test_fused_and_written_out_attention_are_the_same() -> None:
    """timm computes attention in one operation, or step by step."""
    network = TOKEN_NETWORKS["vit"]
    model, inputs = network.model(), network.images()
    fused = METHODS["attn_lrp"](model).attribute(inputs, target=1)
    frozen = METHODS["cp_lrp"](model).attribute(inputs, target=1)
    assert relative(frozen, fused) > 0.01
    for block in model.blocks:
        assert block.attn.fused_attn
        block.attn.fused_attn = False
    assert relative(METHODS["attn_lrp"](model).attribute(inputs, target=1), fused) <= FLOAT64


def test_rules_that_there_are_not() -> None:
    model = nets.VGGLike().eval()
    with pytest.raises(InputError, match="'gama'; did you mean 'gamma'"):
        LRP(model, rules="gama")
    with pytest.raises(InputError, match="epsilon must be from 0 to"):
        LRP(model, epsilon=-0.1)
