"""Rewrites of the frozen graph leave the network's function unchanged."""

import pytest
import torch
from torch import Tensor, nn

from dmbp.engine import plan_for
from dmbp.engine.plan.rewrites import (
    CONCATENATION,
    PartOfLinear,
    fold_batch_norm,
    reuse_concat,
)
from dmbp.linear import Linearizer
from dmbp.linear.network import run
from dmbp.linear.steps import FrozenGraph, Slot
from tests import nets
from tests.engine.networks import HeadsInside, Tokens
from tests.tolerance import FLOAT64, relative


def frozen_at(model: nn.Module, inputs: Tensor) -> FrozenGraph:
    return Linearizer(model.to(inputs.dtype).eval()).linearize(inputs, target=1).frozen


def result(graph: FrozenGraph, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return run(graph, [inputs], None)[0]


def test_batch_norms_are_folded_into_convolutions() -> None:
    inputs, elsewhere = torch.randn(2, 3, 3, 16, 16, dtype=torch.float64)
    frozen = frozen_at(nets.ResidualNet(), inputs)
    folded = fold_batch_norm(frozen)
    assert len(folded.steps) == len(frozen.steps) - 4  # ResidualNet has four batch norms
    assert [s.site for s in folded.steps if s.site] == [s.site for s in frozen.steps if s.site]
    assert relative(result(folded, elsewhere), result(frozen, elsewhere)) <= FLOAT64


@pytest.mark.parametrize(("side", "steps"), [(4, 4), (2, 5)])
def test_average_pooling_to_the_same_size_is_dropped(side: int, steps: int) -> None:
    """VGG16 averages to 7 × 7 pixels, which an image of 224 × 224 already has."""
    average = nn.AdaptiveAvgPool2d(side)
    layers = (nn.Conv2d(3, 5, 3), nn.ReLU(), average, nn.Flatten(), nn.Linear(5 * side**2, 4))
    inputs, elsewhere = torch.randn(2, 3, 3, 6, 6, dtype=torch.float64)
    frozen = frozen_at(nn.Sequential(*layers), inputs)
    folded = fold_batch_norm(frozen)
    assert len(folded.steps) == steps
    assert relative(result(folded, elsewhere), result(frozen, elsewhere)) <= FLOAT64


class Growing(nn.Module):
    """A dense block as in DenseNet, and concatenations that do not belong to its chain."""

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


def test_concatenations_of_a_dense_block_become_a_chain() -> None:
    inputs, elsewhere = torch.randn(2, 2, 3, 6, 6, dtype=torch.float64)
    frozen = frozen_at(Growing(), inputs)
    chained = reuse_concat(frozen)
    steps = [step for step in chained.steps if step.operation == CONCATENATION]
    parts, outputs = [step.arguments[0] for step in steps], [step.output for step in steps]
    assert [len(part) for part in parts] == [1, 2, 2, 2, 4, 2, 2]
    for k in (1, 2, 3):
        assert parts[k][0] == Slot(outputs[k - 1])
    assert parts[5][0] == Slot(outputs[2])
    assert parts[6] == [Slot(outputs[4]), Slot(outputs[5])]
    for images in (inputs, elsewhere):
        assert torch.equal(result(chained, images), result(frozen, images))


class Sides(nn.Module):
    """The same activation, concatenated along two dimensions."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(x)
        wide, high = torch.cat([x, x], 3), torch.cat([x, x, x], 2)
        return wide.mean((2, 3)) + high.mean((2, 3))


def test_concatenations_along_other_dimensions_are_not_chained() -> None:
    frozen = frozen_at(Sides(), torch.randn(1, 3, 4, 4))
    assert [s.arguments for s in reuse_concat(frozen).steps] == [s.arguments for s in frozen.steps]


@pytest.mark.parametrize("model", [Tokens, HeadsInside])
def test_queries_and_keys_are_not_computed(model: type[nn.Module]) -> None:
    """Of 24 outputs only the 8 values remain; layers that are read as a whole stay whole."""
    images = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    plan = plan_for(Linearizer(model().double().eval()).linearize(images, target=[0, 1]))
    pruned = [p.step for p in plan.steps if isinstance(p.step.function, PartOfLinear)]
    assert [step.function for step in pruned] == [PartOfLinear(before=16, after=0)]
    assert [len(step.arguments[1]) for step in pruned] == [8]
