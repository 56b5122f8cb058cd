"""The GPU engine against the reference engine; without a GPU its kernels are interpreted."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from dmbp.decompose.learn import initial_logits
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import AutogradEngine, CpuEngine, Engine, engine_for, plan_for
from dmbp.engine.gpu.engine import GpuEngine
from dmbp.engine.gpu.fusion import plan_fusion
from dmbp.errors import InputError
from dmbp.linear import Linearizer, LinearNetwork
from dmbp.precision import full_precision
from tests import nets
from tests.engine.backends import backend
from tests.engine.networks import FAMILIES, Adding, Classes, Dense, Mixed, Pools, Tokens
from tests.exactness import NETWORKS as TORCHVISION
from tests.tolerance import relative

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

SINGLE = 2e-5
"""Single precision after a few iterations of RMSProp, which divides gradients by their size."""

HALF = {torch.float16: 0.999, torch.bfloat16: 0.99}
"""Correlation of what logits moved by, in 16 bits, with that in single precision, on networks of a
few dozen channels; rounding averages out in larger ones."""


NETWORKS = [nets.LeakyNet, nets.MLP, nets.VGGLike, nets.ResidualNet, nets.FireNet]
NETWORKS = [*NETWORKS, nets.SqueezeExciteNet, nets.TinyViT, nets.TinyConvNeXt, nets.SmoothNet]
NETWORKS = [*NETWORKS, Mixed, Pools, Classes, Dense, Adding, Tokens]


@pytest.fixture(autouse=True)
def _single_precision() -> Iterator[None]:
    """Also for the reference engine, whose convolutions a GPU would run in TF32."""
    with full_precision():
        yield


@pytest.fixture(autouse=True)
def _large_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter pays for every program."""
    if DEVICE == "cpu":
        monkeypatch.setattr("dmbp.engine.gpu.triton.site.TILE_ELEMENTS", 1 << 14)


def network(model: type[nn.Module], rows: int = 2) -> LinearNetwork:
    torch.manual_seed(0)
    shape = (rows, 7) if model is nets.MLP else (rows, 3, 15, 16)
    inputs = torch.randn(shape).to(DEVICE)
    return Linearizer(model().to(DEVICE).eval()).linearize(inputs, target=[1, 2][:rows])


def assert_agree(
    net: LinearNetwork, objective: str, *, triton: bool, iterations: int = 4
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


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(
    "model", [*nets.IMAGE_NETWORKS, nets.MLP, Mixed, Pools, Classes, Dense, Adding]
)
def test_without_triton(model: type[nn.Module], objective: str) -> None:
    assert_agree(network(model), objective, triton=False)


@pytest.mark.parametrize("name", FAMILIES)
def test_torchvisions_families(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = TORCHVISION[name]()
    nets.randomise_statistics(model)
    net = Linearizer(model.to(DEVICE).eval()).linearize(inputs.to(DEVICE), target=[0, 1])
    assert_agree(net, "all", triton=DEVICE == "cuda", iterations=2)


@pytest.mark.parametrize("model", NETWORKS)
def test_with_triton(model: type[nn.Module]) -> None:
    pytest.importorskip("triton")
    assert_agree(network(model), "all", triton=True)


@pytest.mark.parametrize("objective", ["posneg", "pos"])
@pytest.mark.parametrize("model", [nets.LeakyNet, nets.ResidualNet, Pools, Dense])
def test_both_streams_at_once(model: type[nn.Module], objective: str) -> None:
    pytest.importorskip("triton")
    assert_agree(network(model), objective, triton=True)


@pytest.mark.skipif(DEVICE == "cpu", reason="a graph is recorded on GPUs only")
@pytest.mark.parametrize("model", NETWORKS)
def test_recorded_iterations(model: type[nn.Module]) -> None:
    engine = assert_agree(network(model), "all", triton=True, iterations=8)
    assert engine.is_captured


@pytest.mark.parametrize("model", [nets.ResidualNet, Pools])
def test_logits_are_the_reference_engines(model: type[nn.Module]) -> None:
    """Of open gates; masks of closed ones and of pixels that win nothing do nothing."""
    pytest.importorskip("triton")
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


HALVES = [
    (nets.VGGLike, "all"),
    (nets.VGGLike, "posneg"),
    (nets.LeakyNet, "all"),
    (nets.ResidualNet, "posneg"),
    (Dense, "all"),
]
"""All kernels: pooling with and without overlap, slopes, sums, batch norm, one stream and both."""


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(("model", "objective"), HALVES)
def test_half_precision_learns_the_same_masks(
    model: type[nn.Module], objective: str, dtype: torch.dtype
) -> None:
    pytest.importorskip("triton")
    _assert_same_masks(model, objective, dtype=dtype, triton=True)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(("model", "objective"), HALVES)
def test_half_precision_without_triton(
    model: type[nn.Module], objective: str, dtype: torch.dtype
) -> None:
    _assert_same_masks(model, objective, dtype=dtype, triton=False)


def _assert_same_masks(
    model: type[nn.Module], objective: str, *, dtype: torch.dtype, triton: bool
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
    """How far the logits of open gates are from their start."""
    start = initial_logits(plan_for(net))
    gates = {s.site.name: s.function.slope for s in net.frozen.steps if s.site is not None}  # pyright: ignore[reportFunctionMemberAccess]
    is_open = {name: slope.expand_as(start[name]) != 0 for name, slope in gates.items()}
    logits = engine.logits
    return torch.cat([(logits[n] - start[n])[is_open[n]] for n in gates]).detach()


def test_a_row_rounds_alike_alone_and_in_a_batch() -> None:
    """The 16-bit state is rounded at random, by place in the row and iteration alone."""
    pytest.importorskip("triton")
    model = nets.VGGLike().to(DEVICE).eval()
    inputs = torch.randn(3, 3, 16, 16, device=DEVICE)
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
    assert (learned(inputs) == alone).float().mean() >= 0.999  # but for sums in another order


def test_steps_too_small_for_16_bits_count_on_average() -> None:
    """Steps are below half of what 16 bits tell apart: rounded to nearest none would count."""
    pytest.importorskip("triton")
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
def test_scales_are_off_before_rmsprop(objective: str, triton: bool) -> None:
    """Gradients so small that its epsilon counts: a step left with a scale would be too long."""
    if triton:
        pytest.importorskip("triton")
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


def test_scales_follow_the_terms_in_kernels_too() -> None:
    pytest.importorskip("triton")
    net = network(nets.VGGLike)
    plan = plan_for(net)
    settings = {"loss": OBJECTIVES["all"], "learning_rate": 0.5, "dtype": torch.float16}
    engines = [
        GpuEngine(plan, initial_logits(plan), **settings, backend=backend(triton=t))
        for t in (False, True)
    ]
    plain, fused = (engine._learning for engine in engines)  # pyright: ignore[reportPrivateUsage]
    for engine, learning in zip(engines, (plain, fused), strict=True):
        engine.step()
        learning.initial_sizes.mul_(0.01)  # as if terms had grown a hundredfold
        engine.step()
    assert (fused.scales < fused.initial_scales).any()
    assert torch.equal(fused.scales, plain.scales)
    assert torch.equal(fused.product_scales, plain.product_scales)


def test_what_is_merged_into_a_site() -> None:
    plan = plan_for(network(nets.ResidualNet))
    constant = {0} | {p.step.output for p in plan.steps if p.is_constant}
    merging = plan_fusion([p.step for p in plan.steps], constant, pooling=True)
    sums = [merged for merged in merging.gates.values() if len(merged.terms) == 2]
    assert len(sums) == 2  # as many blocks
    assert all(merged.shift is not None for merged in sums)  # batch norms', folded and moved on
    assert merging.unbiased


def test_the_engine_of_a_device_and_precision() -> None:
    net = network(nets.MLP)
    plan = plan_for(net)
    settings = {"loss": OBJECTIVES["all"], "learning_rate": 0.05}
    engine = engine_for(plan, initial_logits(plan), **settings)
    assert isinstance(engine, CpuEngine if DEVICE == "cpu" else GpuEngine)
    if DEVICE == "cpu":
        for precision in ("float16", "bfloat16", "tf32"):
            with pytest.raises(InputError, match=f"precision '{precision}' is for GPUs"):
                engine_for(plan, initial_logits(plan), **settings, precision=precision)
    with pytest.raises(InputError, match="no precision 'bfloat'; did you mean 'bfloat16'"):
        engine_for(plan, initial_logits(plan), **settings, precision="bfloat")
    with pytest.raises(InputError, match=r"no precision torch\.float32; did you mean 'float32'"):
        engine_for(plan, initial_logits(plan), **settings, precision=torch.float32)


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float16, 11), (torch.bfloat16, 8)])
@pytest.mark.parametrize("model", [*nets.WITH_PRODUCTS, nets.SmoothNet])
def test_what_is_frozen_is_cast_with_the_activations(
    model: type[nn.Module], dtype: torch.dtype, bits: int
) -> None:
    """Scales, probabilities and tangents in 16 bits: the terms agree to those of the mantissa."""
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
