"""Concatenations in a chain are those of the network as written."""

import torch
from torch import Tensor, nn

from dmbp.engine.plan.rewrites import CONCATENATION, reuse_concat
from dmbp.linear import Linearizer
from dmbp.linear.network import run
from dmbp.linear.steps import Slot


class Growing(nn.Module):
    """A dense block as DenseNet writes it, and concatenations that are no part of its chain."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(3 * k, 3, 3, padding=1) for k in range(1, 5)])
        self.fc = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        features = [torch.relu(x)]
        for layer in self.layers:
            features.append(torch.relu(layer(torch.cat(features, 1))))
        low, high = torch.cat(features[1:], 1), torch.cat([*features[:3], features[1]], 1)
        return self.fc(torch.cat([low, high], 1).mean((2, 3)))


def test_a_dense_block() -> None:
    torch.manual_seed(0)
    model, inputs = Growing().double().eval(), torch.randn(2, 3, 6, 6).double()
    net = Linearizer(model).linearize(inputs, target=1)
    found = reuse_concat(net.frozen)
    parts = [step.arguments[0] for step in found.steps if step.operation == CONCATENATION]
    made = [step.output for step in found.steps if step.operation == CONCATENATION]
    assert [len(part) for part in parts] == [1, 2, 2, 2, 4, 2, 2]
    for k in (1, 2, 3):
        assert parts[k][0] == Slot(made[k - 1])
    assert parts[5][0] == Slot(made[2])
    assert parts[6] == [Slot(made[4]), Slot(made[5])]
    with torch.no_grad():
        assert torch.equal(run(found, [inputs], None)[0], run(net.frozen, [inputs], None)[0])
        other = torch.randn_like(inputs)
        assert torch.equal(run(found, [other], None)[0], run(net.frozen, [other], None)[0])


def test_other_dimensions_are_other_chains() -> None:
    class Sides(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(x)
            wide, high = torch.cat([x, x], 3), torch.cat([x, x, x], 2)
            return wide.mean((2, 3)) + high.mean((2, 3))

    net = Linearizer(Sides().eval()).linearize(torch.randn(1, 3, 4, 4), target=1)
    assert [s.arguments for s in reuse_concat(net.frozen).steps] == [
        s.arguments for s in net.frozen.steps
    ]
