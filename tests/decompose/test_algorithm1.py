"""The masked forward pass is Algorithm 1, gradients too, and y~ is what it says."""

import pytest
import torch
from torch import nn

import dmbp
from dmbp.decompose.learn import initial_logits
from dmbp.engine import plan_for
from tests import nets
from tests.oracle import dense_terms, literal_terms, relu_shapes
from tests.tolerance import FLOAT64, relative

TARGET = 3


def random_masks(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.rand(s, dtype=x.dtype, requires_grad=True) for s in relu_shapes(model, x)]


@pytest.mark.parametrize("make", [nets.VGGLike, nets.ResidualNet, nets.FireNet])
def test_masked_forward_is_algorithm_1(make: type[nn.Module]) -> None:
    model = make().double().eval()
    x = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    masks = random_masks(model, x)
    expected = literal_terms(model, x, TARGET, masks)

    net = dmbp.linearize(model, x, target=TARGET)
    named = dict(zip([site.name for site in net.sites], masks, strict=True))
    positive = net.value(named).sum()
    negative = net.value({name: 1 - mask for name, mask in named.items()}).sum()
    found = (
        positive.detach(),
        negative.detach(),
        torch.autograd.grad(positive, masks),
        torch.autograd.grad(negative, masks),
    )
    assert relative(found[0], expected[0]) <= FLOAT64
    assert relative(found[1], expected[1]) <= FLOAT64
    for stream in (2, 3):
        for gradient, literal in zip(found[stream], expected[stream], strict=True):
            assert literal.abs().max() > 0
            assert relative(gradient, literal) <= FLOAT64


def test_terms_are_sums_over_paths() -> None:
    """y⁺, y⁻ and y~ against every path of every sign pattern of a small dense network."""
    model = nets.MLP(width=6).double().eval()
    x = torch.randn(7, dtype=torch.float64)
    # The oracle knows no linear-only part in front: fold it.
    front, first = model[0], model[1]
    weights = [first.weight @ front.weight, model[3].weight, model[5].weight]
    biases = [first.weight @ front.bias + first.bias, model[3].bias, model[5].bias]
    masks = [torch.rand(6, dtype=torch.float64) for _ in range(2)]
    expected = dense_terms(weights, biases, x, masks, TARGET)

    net = dmbp.linearize(model, x[None], target=TARGET)
    named = {site.name: mask[None] for site, mask in zip(net.sites, masks, strict=True)}
    positive = net.value(named)
    negative = net.value({name: 1 - mask for name, mask in named.items()})
    nuisance = net.value() - positive - negative
    for found, term in zip((positive, negative, nuisance), expected, strict=True):
        assert relative(found, term) <= FLOAT64


def test_initialisation_follows_the_appendix() -> None:
    """Against a backward pass by hand, layer by layer, on matrices."""
    model = nets.MLP(width=64).double().eval()
    x = torch.randn(7, dtype=torch.float64)
    h1 = torch.relu(model[1](model[0](x)))
    h2 = torch.relu(model[3](h1))

    def rule(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros_like(positive)
        logits[(positive > 0) & (negative > 0)] = 2.0
        logits[(positive < 0) & (negative < 0)] = -2.0
        return logits

    top = model[5].weight[TARGET]
    second = rule(top, top)
    backwards = model[3].weight.T @ torch.diag((h2 > 0).double())
    first = rule(
        backwards @ (top * torch.sigmoid(second)), backwards @ (top * (1 - torch.sigmoid(second)))
    )
    logits = initial_logits(plan_for(dmbp.linearize(model, x[None], target=TARGET)))
    assert torch.equal(logits["2"][0], first)
    assert torch.equal(logits["4"][0], second)
    assert set(first.tolist()) == {-2.0, 0.0, 2.0}
