"""The fast engine against the reference engine: the same terms, masks and maps to rounding."""

import pytest
import torch
from torch import Tensor, nn

from dmbp.attribution.dmbp import DMBP
from dmbp.decompose.learn import initial_logits
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import AutogradEngine, CpuEngine, engine_for, plan_for
from dmbp.engine.plan.rewrites import fold_batch_norm
from dmbp.linear import Linearizer, LinearNetwork
from dmbp.linear.network import run
from tests import nets
from tests.engine.networks import FAMILIES, Classes, Mixed, Overwritten, Pools, Twice
from tests.exactness import NETWORKS
from tests.literal import LiteralEngine
from tests.tolerance import FLOAT64, relative

SMALL = [*nets.IMAGE_NETWORKS, nets.SmoothNet, nets.CompositeNet, nets.MLP]
AFTER_ITERATIONS = 1e-8
"""In double precision RMSProp divides tiny gradients by their own size: rounding grows."""

SINGLE = 1e-5
"""Likewise in single precision, after a dozen iterations."""


def network(model: nn.Module, inputs: Tensor) -> LinearNetwork:
    return Linearizer(model.to(inputs.dtype).eval()).linearize(inputs, target=[0, 1, 2])


def inputs_of(model: type[nn.Module], dtype: torch.dtype) -> Tensor:
    return torch.randn((3, 7) if model is nets.MLP else (3, 3, 16, 16), dtype=dtype)


def assert_agree(net: LinearNetwork, objective: str, iterations: int, tolerance: float) -> None:
    plan = plan_for(net)
    logits = initial_logits(plan)
    before = {name: tensor.clone() for name, tensor in logits.items()}
    reference, fast = (
        kind(plan, logits, loss=OBJECTIVES[objective], learning_rate=0.05)
        for kind in (AutogradEngine, CpuEngine)
    )
    for _ in range(iterations):
        expected, found = reference.step(), fast.step()
        assert relative(found.positive, expected.positive) <= tolerance
        assert relative(found.negative, expected.negative) <= tolerance
    for name, tensor in reference.logits.items():
        assert relative(fast.logits[name], tensor) <= 100 * tolerance
    ends = [engine.readout() for engine in (fast, reference)]
    assert relative(ends[0].positive_map, ends[1].positive_map) <= 10 * tolerance
    assert relative(ends[0].negative_map, ends[1].negative_map) <= 10 * tolerance
    assert all(torch.equal(before[name], logits[name]) for name in before)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("model", [*SMALL, Mixed, Pools, Classes])
def test_double_precision(model: type[nn.Module], objective: str) -> None:
    net = network(model(), inputs_of(model, torch.float64))
    assert_agree(net, objective, iterations=12, tolerance=AFTER_ITERATIONS)


@pytest.mark.parametrize("model", [*SMALL, Mixed, Pools, Classes])
def test_single_precision(model: type[nn.Module]) -> None:
    """Through oneDNN's packed convolutions."""
    net = network(model(), inputs_of(model, torch.float32))
    assert_agree(net, "all", iterations=12, tolerance=SINGLE)


@pytest.mark.parametrize("name", FAMILIES)
def test_torchvisions_families(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = NETWORKS[name]()
    nets.randomise_statistics(model)
    net = Linearizer(model.double().eval()).linearize(inputs.double(), target=[0, 1])
    assert_agree(net, "all", iterations=3, tolerance=AFTER_ITERATIONS)


def test_folding_leaves_the_network_as_it_is() -> None:
    net = network(nets.ResidualNet(), torch.randn(3, 3, 16, 16, dtype=torch.float64))
    fewer = fold_batch_norm(net.frozen)
    assert len(fewer.steps) == len(net.frozen.steps) - 4  # as many batch norms
    assert [step.site for step in fewer.steps if step.site is not None] == list(net.sites)
    elsewhere = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    found, expected = (run(graph, [elsewhere], None)[0] for graph in (fewer, net.frozen))
    assert relative(found, expected) <= FLOAT64


@pytest.mark.parametrize(("side", "steps"), [(4, 4), (2, 5)])
def test_an_average_to_the_size_that_is_there_is_no_step(side: int, steps: int) -> None:
    """As VGG16's of 7 × 7 pixels, which are 7 × 7 where the image is of 224."""
    average = nn.AdaptiveAvgPool2d(side)
    layers = (nn.Conv2d(3, 5, 3), nn.ReLU(), average, nn.Flatten(), nn.Linear(5 * side**2, 4))
    net = network(nn.Sequential(*layers), torch.randn(3, 3, 6, 6, dtype=torch.float64))
    fewer = fold_batch_norm(net.frozen)
    assert len(fewer.steps) == steps
    elsewhere = torch.randn(3, 3, 6, 6, dtype=torch.float64)
    found, expected = (run(graph, [elsewhere], None)[0] for graph in (fewer, net.frozen))
    assert relative(found, expected) <= FLOAT64
    assert_agree(net, "all", iterations=3, tolerance=AFTER_ITERATIONS)


def test_other_classes_are_not_computed() -> None:
    """Their masks stay where they start; those of the classes asked about move."""
    net = network(Classes(), torch.randn(3, 3, 16, 16, dtype=torch.float64))
    plan = plan_for(net)
    logits = initial_logits(plan)
    engine = CpuEngine(plan, logits, loss=OBJECTIVES["all"], learning_rate=0.05)
    engine.step()
    last = net.sites[-1].name
    moved = (engine.logits[last] != logits[last]).flatten(2).any(2)
    assert moved.any(1).all()
    assert not moved[:, 3:].any()  # asked about are 0, 1 and 2
    assert [len(kept) for kept in plan.pruned.channels.values()] == [3]


def test_rows_lost_from_sight_are_left_to_the_reference_engine() -> None:
    """A single row cannot be lost: alone each image is learned by the fast engine."""
    images = torch.randn(3, 3, 12, 12, dtype=torch.float64)
    model = Twice().double().eval()
    settings = {"loss": OBJECTIVES["all"], "learning_rate": 0.05}
    for count, kind in ((3, AutogradEngine), (1, CpuEngine)):
        net = Linearizer(model).linearize(images[:count], target=0)
        plan = plan_for(net)
        assert isinstance(engine_for(plan, initial_logits(plan), **settings), kind)
    explainer = DMBP(model, iterations=6)
    together = explainer.explain(images, target=1)
    alone = explainer.explain(images, target=1, internal_batch_size=1)
    assert together.history.positive.shape == (6, 3)
    assert relative(alone.attribution, together.attribution) <= AFTER_ITERATIONS


def test_an_activation_without_a_say() -> None:
    net = network(Overwritten(), torch.randn(3, 3, 12, 12, dtype=torch.float64))
    plan = plan_for(net)
    logits = initial_logits(plan)
    settings = {"loss": OBJECTIVES["all"], "learning_rate": 0.05}
    reference, fast = (kind(plan, logits, **settings) for kind in (AutogradEngine, CpuEngine))
    for _ in range(4):
        assert relative(fast.step().positive, reference.step().positive) <= AFTER_ITERATIONS
    assert not fast.logits[net.sites[0].name].any()


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_are_known_to_stay(name: str) -> None:
    """Torchvision's networks are all learned by the fast engine."""
    model, inputs = NETWORKS[name]()
    assert plan_for(Linearizer(model.eval()).linearize(inputs, target=0)).rows_first


def test_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmbp.engine.plan.convolution.can_pack", lambda _: False)
    net = network(nets.ResidualNet(), torch.randn(3, 3, 16, 16))
    assert_agree(net, "all", iterations=6, tolerance=SINGLE)


def test_large_sites_are_updated_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmbp.engine.cpu.site.BLOCK", 100)
    net = network(nets.ResidualNet(), torch.randn(3, 3, 16, 16, dtype=torch.float64))
    assert_agree(net, "posneg", iterations=6, tolerance=AFTER_ITERATIONS)


@pytest.mark.parametrize("model", [nets.VGGLike, nets.ResidualNet, nets.LeakyNet])
def test_the_literal_algorithm_gives_the_same(model: type[nn.Module]) -> None:
    """What the speed benchmark compares with computes what is compared."""
    net = network(model(), inputs_of(model, torch.float64))
    plan = plan_for(net)
    logits = initial_logits(plan)
    literal, fast = (
        kind(plan, logits, loss=OBJECTIVES["all"], learning_rate=0.05)
        for kind in (LiteralEngine, CpuEngine)
    )
    for _ in range(5):
        expected, found = literal.step(), fast.step()
        assert relative(found.positive, expected.positive) <= AFTER_ITERATIONS
        assert relative(found.negative, expected.negative) <= AFTER_ITERATIONS
