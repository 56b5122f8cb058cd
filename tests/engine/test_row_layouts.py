"""Networks whose images leave the first dimension: the fast engine learns the same masks."""

import pytest
import torch
from torch import nn

from dmbp.attribution.dmbp import DMBP
from dmbp.decompose.learn import initial_logits
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import AutogradEngine, CpuEngine, engine_for, plan_for
from dmbp.engine.plan.rewrites import PartOfLinear
from dmbp.engine.plan.streams import ROWS_FIRST, RowLayout
from dmbp.linear import Linearizer, LinearNetwork
from dmbp.models.torchvision_models import import_torchvision
from tests.engine.networks import (
    LAYOUTS,
    ChannelsFirst,
    HeadsInside,
    HeadsOutside,
    PerChannel,
    Tokens,
    TokensOutside,
    Vector,
    Windows,
)
from tests.tolerance import relative

AGREED = 1e-10
"""In double precision, after twenty iterations."""

SINGLE = 1e-3
"""In single precision, after three iterations of a deep network: RMSProp makes as much of gradients
that are rounding alone as of any others."""

LEARN = {"loss": OBJECTIVES["all"], "learning_rate": 0.05}


def network(model: nn.Module, rows: int) -> LinearNetwork:
    images = torch.randn(rows, 3, 12, 12, dtype=torch.float64)
    return Linearizer(model.double().eval()).linearize(images, target=list(range(rows)))


def assert_agree(net: LinearNetwork, iterations: int, tolerance: float) -> None:
    plan = plan_for(net)
    logits = initial_logits(plan)
    reference = AutogradEngine(plan, logits, **LEARN)
    fast = engine_for(plan, logits, **LEARN)
    assert isinstance(fast, CpuEngine)
    for _ in range(iterations):
        expected, found = reference.step(), fast.step()
        assert relative(found.positive, expected.positive) <= tolerance
        assert relative(found.negative, expected.negative) <= tolerance
    for name, tensor in reference.logits.items():
        masks = torch.sigmoid(fast.logits[name]), torch.sigmoid(tensor)
        assert relative(*masks) <= tolerance
    ends = [engine.readout() for engine in (fast, reference)]
    assert relative(ends[0].positive_map, ends[1].positive_map) <= tolerance
    assert relative(ends[0].negative_map, ends[1].negative_map) <= tolerance


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("model", LAYOUTS)
def test_the_reference_engine_agrees(model: type[nn.Module], rows: int) -> None:
    torch.manual_seed(0)
    assert_agree(network(model(), rows), iterations=20, tolerance=AGREED)


@pytest.mark.parametrize("model", LAYOUTS)
def test_a_batch_is_its_images(model: type[nn.Module]) -> None:
    torch.manual_seed(0)
    images = torch.randn(3, 3, 12, 12, dtype=torch.float64)
    explainer = DMBP(model().double().eval(), iterations=20)
    together = explainer.explain(images, target=[0, 1, 2])
    for k in range(3):
        alone = explainer.explain(images[k : k + 1], target=k)
        assert relative(alone.attribution, together.attribution[k : k + 1]) <= AGREED


def test_a_batch_dimension_squeezed_away() -> None:
    torch.manual_seed(0)
    assert_agree(network(Vector(), 1), iterations=20, tolerance=AGREED)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (ChannelsFirst, {RowLayout(1)}),
        (PerChannel, {RowLayout(0, 1, 3), ROWS_FIRST}),
        (TokensOutside, {RowLayout(0, 144, 1)}),
        (HeadsOutside, {RowLayout(0, 2, 1)}),
        (HeadsInside, {RowLayout(0, 1, 2), ROWS_FIRST}),
        (Windows, {RowLayout(0, 1, 9), ROWS_FIRST}),
        (Tokens, {ROWS_FIRST}),
    ],
)
def test_where_rows_are_at_masks(model: type[nn.Module], expected: set[RowLayout]) -> None:
    """The networks above are what they are called."""
    plan = plan_for(network(model(), 3))
    sites = {planned.layout for planned in plan.steps if planned.step.site is not None}
    assert sites == expected


@pytest.mark.parametrize(("model", "kept"), [(Tokens, 8), (HeadsInside, 8)])
def test_queries_and_keys_are_not_computed(model: type[nn.Module], kept: int) -> None:
    """Of three times as many outputs; layers that are read as a whole stay whole."""
    plan = plan_for(network(model(), 2))
    layers = [p.step for p in plan.steps if p.step.operation == "aten.linear.default"]
    found = [step for step in layers if isinstance(step.function, PartOfLinear)]
    assert [len(step.arguments[1]) for step in found] == [kept]
    assert [step.function for step in found] == [PartOfLinear(2 * kept, 0)]


@pytest.mark.parametrize(("name", "settings"), [("vit_b_16", {"image_size": 64}), ("swin_t", {})])
def test_torchvisions_transformers(name: str, settings: dict[str, int]) -> None:
    torch.manual_seed(0)
    model = getattr(import_torchvision().models, name)(weights=None, **settings).eval()
    for parameter in model.parameters():  # torchvision's last layer starts at zero
        nn.init.normal_(parameter, std=0.05)
    net = Linearizer(model).linearize(torch.randn(2, 3, 64, 64), target=[0, 1])
    assert_agree(net, iterations=3, tolerance=SINGLE)
