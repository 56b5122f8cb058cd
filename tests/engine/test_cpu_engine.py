"""The CPU engine agrees with the autograd engine: the same terms, masks and maps to rounding."""

import pytest
import torch
from torch import Tensor, nn

from dmbp.decompose.learn import initial_logits
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import AutogradEngine, CpuEngine, plan_for
from dmbp.linear import Linearizer, LinearNetwork
from tests import nets
from tests.engine.networks import FAMILIES, Classes, Mixed, Overwritten, Pools
from tests.exactness import NETWORKS
from tests.literal import LiteralEngine
from tests.tolerance import FLOAT64, relative

MODELS = [
    *nets.IMAGE_NETWORKS,
    *(nets.SmoothNet, nets.CompositeNet, nets.MLP, Mixed, Pools, Classes),
]

AFTER_ITERATIONS = 1e-8
"""Tolerance in double precision: RMSProp divides tiny gradients by their own size, so rounding
grows from iteration to iteration."""

SINGLE = 1e-5
"""The same in single precision, after a dozen iterations."""

LEARN = {"loss": OBJECTIVES["all"], "learning_rate": 0.05}


def network(model: nn.Module, inputs: Tensor) -> LinearNetwork:
    return Linearizer(model.to(inputs.dtype).eval()).linearize(inputs, target=[0, 1, 2])


def inputs_for(model: type[nn.Module], dtype: torch.dtype) -> Tensor:
    return torch.randn((3, 7) if model is nets.MLP else (3, 3, 16, 16), dtype=dtype)


def assert_agree(net: LinearNetwork, objective: str, iterations: int, tolerance: float) -> None:
    plan = plan_for(net)
    logits = initial_logits(plan)
    before = {name: tensor.clone() for name, tensor in logits.items()}
    reference, engine = (
        kind(plan, logits, loss=OBJECTIVES[objective], learning_rate=0.05)
        for kind in (AutogradEngine, CpuEngine)
    )
    for _ in range(iterations):
        expected, found = reference.step(), engine.step()
        assert relative(found.positive, expected.positive) <= tolerance
        assert relative(found.negative, expected.negative) <= tolerance
    for name, tensor in reference.logits.items():
        assert relative(engine.logits[name], tensor) <= 100 * tolerance
    found, expected = engine.readout(), reference.readout()
    assert relative(found.positive_map, expected.positive_map) <= 10 * tolerance
    assert relative(found.negative_map, expected.negative_map) <= 10 * tolerance
    assert all(torch.equal(before[name], logits[name]) for name in before)


@pytest.mark.parametrize("objective", ["all", "posneg"])
@pytest.mark.parametrize("model", MODELS)
def test_agrees_in_double_precision(model: type[nn.Module], objective: str) -> None:
    net = network(model(), inputs_for(model, torch.float64))
    assert_agree(net, objective, iterations=12, tolerance=AFTER_ITERATIONS)


def test_agrees_if_the_loss_touches_the_positive_stream_only() -> None:
    net = network(nets.VGGLike(), inputs_for(nets.VGGLike, torch.float64))
    assert_agree(net, "pos", iterations=12, tolerance=AFTER_ITERATIONS)


@pytest.mark.parametrize("model", MODELS)
def test_agrees_in_single_precision(model: type[nn.Module]) -> None:
    """Convolutions run through oneDNN with packed weights."""
    net = network(model(), inputs_for(model, torch.float32))
    assert_agree(net, "all", iterations=12, tolerance=SINGLE)


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
def test_agrees_without_onednn() -> None:
    net = network(nets.ResidualNet(), torch.randn(3, 3, 16, 16))
    with torch.backends.mkldnn.flags(enabled=False):
        assert_agree(net, "all", iterations=6, tolerance=SINGLE)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_agrees_on_torchvisions_families(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = NETWORKS[name]()
    nets.randomise_statistics(model)
    model, inputs = model.double().eval(), inputs.double()
    net = Linearizer(model).linearize(inputs, target=[0, 1])
    with torch.no_grad():
        expected = model(inputs)[[0, 1], [0, 1]]
    assert net.sites
    assert relative(net.value(), expected) <= FLOAT64
    assert plan_for(net).rows_first
    assert_agree(net, "all", iterations=2, tolerance=AFTER_ITERATIONS)


def test_agrees_on_a_site_that_is_updated_in_several_blocks() -> None:
    """Its rows have more than 2²⁰ elements, which is more than one block of the site's memory."""
    layers = (nn.Conv2d(3, 17, 1), nn.ReLU(), nn.AvgPool2d(8), nn.Flatten(), nn.LazyLinear(4))
    model, inputs = nn.Sequential(*layers).double(), torch.randn(2, 3, 256, 256).double()
    model(inputs)
    net = Linearizer(model.eval()).linearize(inputs, target=[0, 1])
    for objective in ("all", "posneg"):
        assert_agree(net, objective, iterations=3, tolerance=AFTER_ITERATIONS)


def test_channels_of_other_classes_are_not_computed() -> None:
    """Their masks keep their initial value; those of the targets' channels change."""
    net = network(Classes(), torch.randn(3, 3, 16, 16, dtype=torch.float64))
    plan = plan_for(net)
    logits = initial_logits(plan)
    engine = CpuEngine(plan, logits, **LEARN)
    engine.step()
    last = net.sites[-1].name
    moved = (engine.logits[last] != logits[last]).flatten(2).any(2)
    assert moved.any(1).all()
    assert not moved[:, 3:].any()  # the targets are 0, 1 and 2
    assert [len(kept) for kept in plan.pruned.channels.values()] == [3]


def test_masks_of_an_overwritten_activation_stay_at_zero() -> None:
    net = network(Overwritten(), torch.randn(3, 3, 12, 12, dtype=torch.float64))
    plan = plan_for(net)
    logits = initial_logits(plan)
    reference, engine = (kind(plan, logits, **LEARN) for kind in (AutogradEngine, CpuEngine))
    for _ in range(4):
        assert relative(engine.step().positive, reference.step().positive) <= AFTER_ITERATIONS
    assert not engine.logits[net.sites[0].name].any()


@pytest.mark.parametrize("model", [nets.VGGLike, nets.ResidualNet, nets.LeakyNet])
def test_agrees_with_the_literal_algorithm(model: type[nn.Module]) -> None:
    """The engine that the speed benchmark compares with computes the same terms."""
    net = network(model(), inputs_for(model, torch.float64))
    plan = plan_for(net)
    logits = initial_logits(plan)
    literal, engine = (kind(plan, logits, **LEARN) for kind in (LiteralEngine, CpuEngine))
    for _ in range(5):
        expected, found = literal.step(), engine.step()
        assert relative(found.positive, expected.positive) <= AFTER_ITERATIONS
        assert relative(found.negative, expected.negative) <= AFTER_ITERATIONS
