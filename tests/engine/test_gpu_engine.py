"""The GPU engine agrees with the autograd engine; without a GPU its kernels are interpreted."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dmbp.decompose.learn import initial_logits
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import AutogradEngine, Engine, plan_for
from dmbp.engine.gpu.engine import GpuBackend, GpuEngine
from dmbp.engine.gpu.fusion import plan_fusion
from dmbp.engine.gpu.learning_state import LearningState
from dmbp.engine.gpu.program import LossHead
from dmbp.engine.plan.tail import Tail
from dmbp.linear import Linearizer, LinearNetwork
from dmbp.precision import full_precision
from tests import nets
from tests.engine.backends import DEVICE, backend
from tests.engine.networks import FAMILIES, Adding, Classes, Dense, Mixed, Pools, Tokens
from tests.exactness import NETWORKS as TORCHVISION
from tests.tolerance import relative

pytestmark = pytest.mark.usefixtures("large_tiles")

SINGLE = 2e-5
"""Tolerance in single precision after a few iterations of RMSProp, which divides gradients by their
size."""

HALF = {torch.float16: 0.999, torch.bfloat16: 0.99}
"""The least correlation between the changes of logits in 16 bits and in single precision, on
networks with a few dozen channels; rounding averages out in larger ones."""

NETWORKS = [
    *(nets.LeakyNet, nets.MLP, nets.VGGLike, nets.ResidualNet, nets.FireNet),
    *(nets.SqueezeExciteNet, nets.TinyViT, nets.TinyConvNeXt, nets.SmoothNet),
    *(Mixed, Pools, Classes, Dense, Adding, Tokens),
]


@pytest.fixture(autouse=True)
def _single_precision() -> Iterator[None]:
    """Keep a GPU from running the autograd engine's convolutions in TF32."""
    with full_precision():
        yield


def network(model: type[nn.Module], rows: int = 2) -> LinearNetwork:
    torch.manual_seed(0)
    shape = (rows, 7) if model is nets.MLP else (rows, 3, 15, 16)
    inputs = torch.randn(shape).to(DEVICE)
    return Linearizer(model().to(DEVICE).eval()).linearize(inputs, target=[1, 2][:rows])


def assert_agree(
    net: LinearNetwork, objective: str, *, triton: bool, iterations: int = 3
) -> GpuEngine:
    plan = plan_for(net)
    logits = initial_logits(plan)
    settings = {"loss": OBJECTIVES[objective], "learning_rate": 0.05}
    reference = AutogradEngine(plan, logits, **settings)
    engine = GpuEngine(
        plan, logits, **settings, dtype=torch.float32, backend=backend(triton=triton)
    )
    for _ in range(iterations):
        expected, found = reference.step(), engine.step()
        assert relative(found.positive, expected.positive) <= SINGLE
        assert relative(found.negative, expected.negative) <= SINGLE
    expected, found = reference.readout(), engine.readout()
    assert relative(found.positive_map, expected.positive_map) <= 10 * SINGLE
    assert relative(found.negative_map, expected.negative_map) <= 10 * SINGLE
    return engine


@pytest.mark.parametrize("objective", ["all", "posneg"])
@pytest.mark.parametrize(
    "model", [*nets.IMAGE_NETWORKS, nets.MLP, Mixed, Pools, Classes, Dense, Adding]
)
def test_agrees_without_triton(model: type[nn.Module], objective: str) -> None:
    assert_agree(network(model), objective, triton=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", FAMILIES if DEVICE == "cuda" else ["resnet18", "googlenet", "mobilenet_v2"]
)
def test_agrees_on_torchvisions_families(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = TORCHVISION[name]()
    nets.randomise_statistics(model)
    net = Linearizer(model.to(DEVICE).eval()).linearize(inputs.to(DEVICE), target=[0, 1])
    assert_agree(net, "all", triton=DEVICE == "cuda", iterations=2)


@pytest.mark.parametrize("model", NETWORKS)
def test_agrees_with_triton(model: type[nn.Module]) -> None:
    assert_agree(network(model), "all", triton=True)


@pytest.mark.parametrize("model", [nets.LeakyNet, nets.ResidualNet, Pools, Dense])
def test_agrees_if_the_loss_touches_both_streams(model: type[nn.Module]) -> None:
    assert_agree(network(model), "posneg", triton=True)


@pytest.mark.parametrize("triton", [False, True])
def test_agrees_if_the_loss_touches_the_positive_stream_only(triton: bool) -> None:
    assert_agree(network(nets.VGGLike), "pos", triton=triton)


@pytest.mark.skipif(DEVICE == "cpu", reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("model", NETWORKS)
def test_agrees_from_a_cuda_graph(model: type[nn.Module]) -> None:
    engine = assert_agree(network(model), "all", triton=True, iterations=8)
    assert engine.is_captured


@pytest.mark.parametrize("model", [nets.ResidualNet, Pools])
def test_logits_of_open_gates_agree(model: type[nn.Module]) -> None:
    """Masks of closed gates, and of pixels that win no window, have no effect."""
    net = network(model)
    plan = plan_for(net)
    logits = initial_logits(plan)
    settings = {"loss": OBJECTIVES["all"], "learning_rate": 0.05}
    reference = AutogradEngine(plan, logits, **settings)
    engine = GpuEngine(plan, logits, **settings, dtype=torch.float32, backend=backend(triton=True))
    for _ in range(3):
        reference.step(), engine.step()
    for step in net.frozen.steps:
        if step.site is not None:
            is_open = step.function.slope  # pyright: ignore[reportFunctionMemberAccess]
            found, expected = (e.logits[step.site.name][is_open] for e in (engine, reference))
            assert relative(found, expected.detach()) <= 10 * SINGLE


HALF_CASES = [
    (nets.VGGLike, "all", torch.float16),
    (nets.VGGLike, "posneg", torch.float16),
    (nets.LeakyNet, "all", torch.float16),
    (nets.ResidualNet, "posneg", torch.float16),
    (Dense, "all", torch.float16),
    (nets.VGGLike, "all", torch.bfloat16),
    (nets.ResidualNet, "posneg", torch.bfloat16),
]
"""These run all kernels: pooling with and without overlap, slopes, sums, batch norm, one stream and
both. The data type changes how the kernels round, not which of them run."""


@pytest.mark.slow
@pytest.mark.parametrize("triton", [False, True])
@pytest.mark.parametrize(("model", "objective", "dtype"), HALF_CASES)
def test_half_precision_learns_the_same_masks(
    model: type[nn.Module], objective: str, dtype: torch.dtype, triton: bool
) -> None:
    net = network(model)
    plan = plan_for(net)
    settings = {"loss": OBJECTIVES[objective], "learning_rate": 0.05}
    reference = AutogradEngine(plan, initial_logits(plan), **settings)
    engine = GpuEngine(
        plan, initial_logits(plan), **settings, dtype=dtype, backend=backend(triton=triton)
    )
    reference.learn(4)
    past = engine.learn(4)
    engine.readout()
    assert engine.is_in_range(past)
    moved, expected = (_moved(e, net) for e in (engine, reference))
    assert torch.corrcoef(torch.stack([moved, expected]))[0, 1] >= HALF[dtype]


def _moved(engine: Engine, net: LinearNetwork) -> Tensor:
    """Return how far the logits of open gates have moved from their initial values."""
    start = initial_logits(plan_for(net))
    gates = {s.site.name: s.function.slope for s in net.frozen.steps if s.site is not None}  # pyright: ignore[reportFunctionMemberAccess]
    is_open = {name: slope.expand_as(start[name]) != 0 for name, slope in gates.items()}
    logits = engine.logits
    return torch.cat([(logits[n] - start[n])[is_open[n]] for n in gates]).detach()


def test_a_row_rounds_equally_alone_and_in_a_batch() -> None:
    """The 16-bit state is rounded at random, by the place in the row and the iteration only."""
    model = nets.VGGLike().to(DEVICE).eval()
    inputs = torch.randn(2, 3, 16, 16, device=DEVICE)
    linearizer = Linearizer(model)

    def learned(images: Tensor) -> Tensor:
        net = linearizer.linearize(images, target=1)
        plan = plan_for(net)
        engine = GpuEngine(
            plan,
            initial_logits(plan),
            loss=OBJECTIVES["all"],
            learning_rate=0.05,
            backend=backend(triton=True),
        )
        for _ in range(3):
            engine.step()
        return torch.cat([logits.flatten(1) for logits in engine.logits.values()], 1)

    alone = torch.cat([learned(image[None]) for image in inputs])
    assert (learned(inputs) == alone).float().mean() >= 0.999  # sums may be in another order


@pytest.mark.slow
def test_steps_too_small_for_16_bits_count_on_average() -> None:
    """Steps are below half of the resolution; rounded to nearest, they would all be lost."""
    model = nn.Sequential(nn.Conv2d(3, 16, 1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 144, 1))
    model = model.to(DEVICE).eval()
    net = Linearizer(model).linearize(torch.randn(1, 3, 12, 12, device=DEVICE), target=0)
    plan = plan_for(net)
    start = {"1": torch.full((1, 16, 12, 12), 3.0, device=DEVICE)}
    settings = {"loss": OBJECTIVES["pos"], "learning_rate": 0.00002}
    reference = AutogradEngine(plan, start, **settings)
    engine = GpuEngine(plan, start, **settings, backend=backend(triton=True))
    for _ in range(40):
        reference.step(), engine.step()
    is_open = net.frozen.steps[1].function.slope  # pyright: ignore[reportFunctionMemberAccess]
    moved, expected = ((e.logits["1"] - 3)[is_open].detach() for e in (engine, reference))
    assert abs((moved * expected.sign()).mean() / expected.abs().mean() - 1) <= 0.03


@pytest.mark.parametrize("triton", [False, True])
@pytest.mark.parametrize("objective", ["all", "posneg"])
def test_gradients_are_unscaled_before_rmsprop(objective: str, triton: bool) -> None:
    """Gradients are so small that epsilon counts, and a scale that is left would lengthen steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))
    model[3].weight.data.mul_(1e-6)  # pyright: ignore
    inputs = torch.randn(1, 3, 8, 8, device=DEVICE)
    net = Linearizer(model.to(DEVICE).eval()).linearize(inputs, target=0)
    plan = plan_for(net)
    settings = {"loss": OBJECTIVES[objective], "learning_rate": 0.5}
    reference = AutogradEngine(plan, initial_logits(plan), **settings)
    engine = GpuEngine(plan, initial_logits(plan), **settings, backend=backend(triton=triton))
    for _ in range(2):
        reference.step(), engine.step()
    moved, expected = (_moved(e, net).abs().mean() for e in (engine, reference))
    assert abs(moved / expected - 1) <= 0.01


@dataclass
class StateBackend:
    """A back end that keeps the learning state it is given."""

    inner: GpuBackend
    state: LearningState | None = None

    def loss_head(self, tail: Tail, output: Tensor, learning: LearningState) -> LossHead:
        self.state = learning
        return self.inner.loss_head(tail, output, learning)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_scales_follow_the_terms_in_both_back_ends() -> None:
    plan = plan_for(network(nets.VGGLike))
    settings = {"loss": OBJECTIVES["all"], "learning_rate": 0.5, "dtype": torch.float16}

    def state_after_growth(*, triton: bool) -> LearningState:
        keeper: Any = StateBackend(backend(triton=triton))
        engine = GpuEngine(plan, initial_logits(plan), **settings, backend=keeper)
        engine.step()
        keeper.state.initial_sizes.mul_(0.01)  # as if the terms had grown a hundredfold
        engine.step()
        return keeper.state

    expected, found = (state_after_growth(triton=triton) for triton in (False, True))
    assert (found.scales < found.initial_scales).any()
    assert torch.equal(found.scales, expected.scales)
    assert torch.equal(found.product_scales, expected.product_scales)


def test_sums_and_shifts_are_fused_into_a_site() -> None:
    plan = plan_for(network(nets.ResidualNet))
    constant = {0} | {p.step.output for p in plan.steps if p.is_constant}
    fusion = plan_fusion([p.step for p in plan.steps], constant, pooling=True)
    sums = [fused for fused in fusion.gates.values() if len(fused.terms) == 2]
    assert len(sums) == 2  # as many blocks
    assert all(fused.shift is not None for fused in sums)  # the shifts of folded batch norms
    assert fusion.unbiased


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float16, 11), (torch.bfloat16, 8)])
@pytest.mark.parametrize("model", [*nets.WITH_PRODUCTS, nets.SmoothNet])
def test_frozen_values_are_cast_with_the_activations(
    model: type[nn.Module], dtype: torch.dtype, bits: int
) -> None:
    """With scales, probabilities and tangents in 16 bits, terms agree to the mantissa's bits."""
    net = network(model)
    plan = plan_for(net)
    settings = {"loss": OBJECTIVES["all"], "learning_rate": 0.05}
    reference = AutogradEngine(plan, initial_logits(plan), **settings)
    engine = GpuEngine(
        plan,
        initial_logits(plan),
        **settings,
        dtype=dtype,
        backend=backend(triton=DEVICE == "cuda"),
    )
    for _ in range(4):
        expected, found = reference.step(), engine.step()
    assert relative(found.positive, expected.positive) <= 13 * 2.0**-bits
