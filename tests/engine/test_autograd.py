"""The autograd engine steps by RMSProp on the full gradient of the loss."""

import torch

import dmbp
from dmbp.decompose.learn import initial_logits
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import AutogradEngine, Terms, plan_for
from tests import nets
from tests.tolerance import FLOAT64, relative


def test_skipping_the_inactive_stream_changes_nothing() -> None:
    """The reference is autograd through both streams, with RMSProp written out."""
    net = dmbp.linearize(
        nets.ResidualNet().double().eval(), torch.randn(4, 3, 8, 8, dtype=torch.float64), target=1
    )
    plan = plan_for(net)
    loss = OBJECTIVES["all"]
    logits = {name: tensor.clone() for name, tensor in initial_logits(plan).items()}
    engine = AutogradEngine(plan, logits, loss=loss, learning_rate=0.05)
    squares = {name: torch.zeros_like(tensor) for name, tensor in logits.items()}
    for _ in range(6):
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in logits.items()}
        masks = {name: leaf.sigmoid() for name, leaf in leaves.items()}
        complements = {name: 1 - mask for name, mask in masks.items()}
        terms = Terms(net.value(), net.value(masks), net.value(complements))
        gradients = torch.autograd.grad(loss(terms).sum(), list(leaves.values()))
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
            squares[name] = 0.99 * squares[name] + 0.01 * gradient**2
            logits[name] = leaf.detach() - 0.05 * gradient / (squares[name].sqrt() + 1e-8)
        stepped = engine.step()
        assert relative(stepped.positive, terms.positive.detach()) <= FLOAT64
        assert relative(stepped.negative, terms.negative.detach()) <= FLOAT64
    for name, tensor in engine.logits.items():
        assert relative(tensor.detach(), logits[name]) <= FLOAT64
