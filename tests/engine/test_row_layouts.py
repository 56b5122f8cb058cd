"""Networks whose rows leave dimension 0: the CPU engine still learns the same masks."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from dmbp.attribution.dmbp import DMBP
from dmbp.decompose.learn import initial_logits
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import AutogradEngine, CpuEngine, engine_for, plan_for
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
"""Tolerance in double precision, after twenty iterations."""

TRANSFORMERS = 1e-8
"""Likewise for networks with layer norms, which amplify rounding error."""

LEARN = {"loss": OBJECTIVES["all"], "learning_rate": 0.05}


def network(model: nn.Module, rows: int) -> LinearNetwork:
    images = torch.randn(rows, 3, 12, 12, dtype=torch.float64)
    return Linearizer(model.double().eval()).linearize(images, target=list(range(rows)))


def assert_agree(net: LinearNetwork, iterations: int, tolerance: float) -> None:
    plan = plan_for(net)
    logits = initial_logits(plan)
    reference = AutogradEngine(plan, logits, **LEARN)
    engine = engine_for(plan, logits, **LEARN)
    assert isinstance(engine, CpuEngine)
    for _ in range(iterations):
        expected, found = reference.step(), engine.step()
        assert relative(found.positive, expected.positive) <= tolerance
        assert relative(found.negative, expected.negative) <= tolerance
    for name, tensor in reference.logits.items():
        masks = torch.sigmoid(engine.logits[name]), torch.sigmoid(tensor)
        assert relative(*masks) <= tolerance
    found, expected = engine.readout(), reference.readout()
    assert relative(found.positive_map, expected.positive_map) <= tolerance
    assert relative(found.negative_map, expected.negative_map) <= tolerance


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("model", LAYOUTS)
def test_agrees_with_the_autograd_engine(model: type[nn.Module], rows: int) -> None:
    torch.manual_seed(0)
    assert_agree(network(model(), rows), iterations=20, tolerance=AGREED)


@pytest.mark.parametrize("model", LAYOUTS)
def test_a_batch_equals_its_images_alone(model: type[nn.Module]) -> None:
    torch.manual_seed(0)
    images = torch.randn(3, 3, 12, 12, dtype=torch.float64)
    explainer = DMBP(model().double().eval(), iterations=20)
    together = explainer.explain(images, target=[0, 1, 2])
    for k in range(3):
        alone = explainer.explain(images[k : k + 1], target=k)
        assert relative(alone.attribution, together.attribution[k : k + 1]) <= AGREED


def test_agrees_if_the_batch_dimension_is_squeezed_away() -> None:
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
def test_where_rows_are_at_sites(model: type[nn.Module], expected: set[RowLayout]) -> None:
    """The networks have the layouts that they are named for."""
    plan = plan_for(network(model(), 3))
    sites = {planned.layout for planned in plan.steps if planned.step.site is not None}
    assert sites == expected


def vision_transformer() -> nn.Module:
    return import_torchvision().models.VisionTransformer(
        image_size=64, patch_size=16, num_layers=2, num_heads=3, hidden_dim=24, mlp_dim=48
    )


def swin_transformer() -> nn.Module:
    return import_torchvision().models.SwinTransformer(
        patch_size=[4, 4], embed_dim=12, depths=[2, 2], num_heads=[2, 4], window_size=[7, 7]
    )


@pytest.mark.slow
@pytest.mark.parametrize("make", [vision_transformer, swin_transformer])
def test_agrees_on_torchvisions_transformers(make: Callable[[], nn.Module]) -> None:
    """Blocks as in vit_b_16 and swin_t, but fewer and narrower."""
    torch.manual_seed(0)
    model = make()
    for parameter in model.parameters():  # torchvision's last layer starts at zero
        nn.init.normal_(parameter, std=0.05)
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    net = Linearizer(model.double().eval()).linearize(images, target=[0, 1])
    assert_agree(net, iterations=5, tolerance=TRANSFORMERS)
