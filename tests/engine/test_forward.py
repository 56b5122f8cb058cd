"""The fast forward pass computes what the model computes, or is not offered."""

import copy
import inspect
import pickle

import pytest
import torch
from torch import Tensor, nn

from dmbp.attribution.rise import RISE
from dmbp.engine.forward import convolution, recording
from dmbp.engine.forward.convolution import fuse_cudnn, fuse_onednn
from dmbp.engine.forward.forward_pass import (
    ForwardPass,
    ForwardPasses,
    fast_forward,
    fingerprint,
    input_gradients,
)
from dmbp.engine.forward.graph import ForwardGraph
from dmbp.linear import Linearizer
from dmbp.linear.capture.export import CapturedGraph
from dmbp.models import load_model
from dmbp.precision import relative_error
from tests import nets
from tests.engine import networks
from tests.exactness import NETWORKS

ROUNDING = 1e-5
"""For two float32 computations of a forward pass; folding a batch norm rounds its weights."""

HALF = 5e-2
"""What is accepted of a forward pass in 16 bits."""

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CONVOLUTIONAL = [
    *(net for net in nets.IMAGE_NETWORKS if net is not nets.VGGLike),  # takes one size
    *(nets.CompositeNet, nets.SmoothNet, nets.ReLUByComparison),
    *(networks.Mixed, networks.Pools, networks.Classes, networks.Dense, networks.Adding),
    *(networks.Overwritten, networks.Block, networks.TwoBranches),
    *(networks.PerChannel, networks.ChannelsFirst, networks.Unbound, networks.PooledColours),
]
WITHOUT_CONVOLUTIONS = [
    *(networks.SequenceFirst, networks.Tokens, networks.TokensOutside),
    *(networks.HeadsInside, networks.HeadsOutside, networks.Windows),
]
TORCHVISION = [*networks.FAMILIES, "resnext50_32x4d"]


class ReadTwice(nn.Module):
    """Convolutions that look fusable, but whose results are read again, or added to themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.second, self.third = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.fourth, self.wide = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 1, 1)
        self.fc = nn.Linear(4, 5)
        nets.randomise_statistics(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = torch.relu(self.norm(x)) - x
        y = self.second(x)
        x = torch.relu(y + x) + y
        y = self.third(x)
        x = torch.relu(y + y)
        x = torch.relu(torch.add(self.fourth(x), x, alpha=2))
        x = torch.relu(x + self.wide(x))  # one channel, added to all
        return self.fc(x.mean((2, 3)))


class Heads(nn.Module):
    """Batch norms after layers with a bias and without: of channels, of features, and of positions.

    That of positions cannot be folded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.positions = (
            nn.Conv2d(3, 6, 3),
            nn.BatchNorm2d(6),
            nn.BatchNorm1d(6),
        )
        nets.randomise_statistics(self)
        self.mix, self.hidden = nn.Linear(100, 6), nn.Linear(36, 8, bias=False)
        self.features, self.fc = nn.BatchNorm1d(8), nn.Linear(8, 5)
        for norm in (self.positions, self.features):
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
            nn.init.normal_(norm.running_mean)

    def forward(self, x: Tensor) -> Tensor:
        x = self.positions(self.mix(torch.relu(self.norm(self.conv(x))).flatten(2)))
        return self.fc(torch.relu(self.features(self.hidden(x.flatten(1)))))


class WeightsOfWeights(nn.Module):
    """A convolution's weight and a mask are computed from parameters, at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.fc = nn.Parameter(torch.randn(4, 3, 3, 3)), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        mask = torch.arange(4, device=x.device).view(4, 1, 1) / 4
        return self.fc((torch.relu(torch.conv2d(x, weight)) * mask).mean((2, 3)))


def captured_graph(model: nn.Module, images: Tensor) -> CapturedGraph:
    linearizer = Linearizer(model.eval())
    linearizer.linearize(images, target=0)
    captured = linearizer.captured_graph(images)
    assert captured is not None
    return captured


def outputs(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return model(images)


def assert_agrees(forward: ForwardPass, model: nn.Module, like: Tensor, tolerance: float) -> None:
    """Compare on other images, in one batch, in chunks, and one alone."""
    images = torch.randn(5, *like.shape[1:], device=like.device)
    expected = outputs(model, images)
    for found in (forward(images), forward(images, batch_size=2), forward(images, batch_size=4)):
        assert found.dtype == torch.float32
        assert relative_error(found, expected) <= tolerance
    assert relative_error(forward(images[3:4]), expected[3:4]) <= tolerance


@pytest.mark.parametrize("network", [*CONVOLUTIONAL, ReadTwice, Heads, WeightsOfWeights])
def test_small_networks(network: type[nn.Module]) -> None:
    model, images = network(), torch.randn(2, 3, 12, 12)
    forward = fast_forward(captured_graph(model, images), images)
    assert forward is not None
    assert_agrees(forward, model, images, ROUNDING)


@pytest.mark.parametrize("network", [*CONVOLUTIONAL, *WITHOUT_CONVOLUTIONS, ReadTwice, Heads])
def test_gradients_are_those_of_the_model(network: type[nn.Module]) -> None:
    if network is networks.Overwritten:
        pytest.skip("autograd cannot differentiate this module, only its captured graph")
    model, images = network(), torch.randn(2, 3, 12, 12)
    forward = fast_forward(captured_graph(model, images), images, is_differentiable=True)
    assert forward is not None
    images = torch.randn(3, 3, 12, 12)
    weights = torch.randn_like(outputs(model, images))
    expected = input_gradients(model, images, weights)
    found = forward.gradients(images, weights)
    assert expected is not None
    assert found is not None
    assert relative_error(found, expected) <= ROUNDING
    assert relative_error(forward(images), outputs(model, images)) <= ROUNDING


def test_a_model_that_detaches_its_input_has_no_gradients() -> None:
    layer = nn.Linear(4, 2)
    images, weights = torch.randn(3, 4), torch.ones(3, 2)
    assert input_gradients(lambda x: layer(x.detach()), images, weights) is None
    with torch.no_grad():
        assert input_gradients(layer, images, weights) is not None
    frozen = layer.requires_grad_(False)
    assert input_gradients(lambda x: frozen(x.detach()), images, weights) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvisions_families(name: str) -> None:
    model, images = NETWORKS[name]()
    nets.randomise_statistics(model)
    forward = fast_forward(captured_graph(model, images), images)
    assert forward is not None
    assert_agrees(forward, model, images, ROUNDING)


def test_the_built_in_model() -> None:
    model, images = load_model("voc160").module, torch.randn(1, 3, 160, 160)
    forward = fast_forward(captured_graph(model, images), images)
    assert forward is not None
    assert forward.fused_convolutions == 28
    assert_agrees(forward, model, images, ROUNDING)


@pytest.mark.parametrize("network", WITHOUT_CONVOLUTIONS)
def test_nothing_is_gained_without_convolutions(network: type[nn.Module]) -> None:
    model, images = network(), torch.randn(2, 3, 12, 12)
    captured = captured_graph(model, images)
    assert fast_forward(captured, images) is None
    unfused = ForwardPass(captured, images.device, dtypes=[torch.float32])
    assert_agrees(unfused, model, images, ROUNDING)


def remaining_operations(graph: ForwardGraph) -> list[str]:
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    return [
        target.__name__ if inspect.isfunction(target) else str(target).removeprefix("aten.")
        for target in targets
    ]


def test_a_residual_network_becomes_four_convolutions() -> None:
    captured = captured_graph(nets.ResidualNet(), torch.randn(2, 3, 16, 16))
    graph = ForwardGraph(captured)
    graph.fold_batch_norms()
    assert "batch_norm.default" not in remaining_operations(graph)
    assert graph.fuse_convolutions(fuse_onednn, batch=4) == 4
    # Of the last two convolutions, one adds the other.
    fused = ["convolve", "convolve_and_add", "convolve", "convolve_and_add"]
    assert remaining_operations(graph) == [*fused, "mean.dim", "linear.default"]


def test_dropout_is_left_out_and_constants_are_computed_once() -> None:
    layers = (nn.Conv2d(3, 4, 3), nn.Dropout(), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    graph = ForwardGraph(captured_graph(nn.Sequential(*layers), torch.randn(2, 3, 6, 6)))
    graph.fuse_convolutions(fuse_onednn, batch=4)
    assert remaining_operations(graph) == ["convolve", "flatten.using_ints", "linear.default"]
    graph = ForwardGraph(captured_graph(WeightsOfWeights(), torch.randn(2, 3, 6, 6)))
    expected = ["conv2d.default", "relu.default", "mul.Tensor", "mean.dim", "linear.default"]
    assert remaining_operations(graph) == expected


@pytest.mark.parametrize(
    "activation",
    [nn.ReLU(), nn.ReLU6(), nn.Hardtanh(-0.3, 0.4), nn.LeakyReLU(0.2), nn.SiLU(), nn.Hardswish()],
    ids=lambda activation: type(activation).__name__,
)
def test_activations_are_fused(activation: nn.Module) -> None:
    layers = (nn.Conv2d(3, 4, 3), activation, nn.Flatten(), nn.Linear(64, 5))
    model, images = nn.Sequential(*layers), torch.randn(2, 3, 6, 6)
    captured = captured_graph(model, images)
    graph = ForwardGraph(captured)
    graph.fuse_convolutions(fuse_onednn, batch=4)
    assert remaining_operations(graph) == ["convolve", "flatten.using_ints", "linear.default"]
    forward = fast_forward(captured, images)
    assert forward is not None
    assert_agrees(forward, model, 4 * images, ROUNDING)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("network", [*CONVOLUTIONAL, *WITHOUT_CONVOLUTIONS, ReadTwice, Heads])
def test_16_bits(network: type[nn.Module], dtype: torch.dtype) -> None:
    model, images = network(), torch.randn(2, 3, 12, 12)
    forward = ForwardPass(captured_graph(model, images), images.device, dtypes=[dtype])
    assert_agrees(forward, model, images, HALF)


class ForcedFloat32(nn.Module):
    """Casts to float32 inside, as some norms do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x)).to(torch.float32)
        return self.fc(x.mean((2, 3), dtype=torch.float32))


def test_casts_to_float32_become_casts_to_16_bits() -> None:
    model, images = ForcedFloat32(), torch.randn(2, 3, 12, 12)
    forward = ForwardPass(captured_graph(model, images), images.device, dtypes=[torch.bfloat16])
    assert_agrees(forward, model, images, HALF)


@torch.no_grad()
def test_bfloat16_is_used_for_images_that_overflow_float16_alone() -> None:
    layers = (nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    model, images = nn.Sequential(*layers), torch.randn(3, 3, 6, 6)
    captured, both = captured_graph(model, images), (torch.float16, torch.bfloat16)
    large = images.clone()
    large[1] *= 1e5
    narrow = ForwardPass(captured, images.device, dtypes=both[:1])(large)
    assert torch.isfinite(narrow).all(1).tolist() == [True, False, True]
    forward = ForwardPass(captured, images.device, dtypes=both)
    for _ in range(2):
        found = forward(large)
        assert torch.equal(found[[0, 2]], narrow[[0, 2]])
        assert relative_error(found, model(large)) <= HALF
    # Images that overflow before anything is changed in them are not run twice.
    wider = forward.faithful_at(large, model(large))
    assert wider is not None
    assert wider.dtype == torch.bfloat16
    assert forward.faithful_at(images, model(images)) is forward


@torch.no_grad()
def test_float32_is_used_where_16_bits_are_not_enough() -> None:
    """The output is a small difference of large numbers."""
    layers = (nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    model, images = nn.Sequential(*layers), torch.randn(3, 3, 6, 6)
    layers[0].bias.fill_(100.0)
    layers[3].weight.sub_(layers[3].weight.mean(1, keepdim=True))
    captured, outputs = captured_graph(model, images), model(images)
    both = (torch.bfloat16, torch.float32)
    forward = ForwardPass(captured, images.device, dtypes=both)
    assert relative_error(forward(images), outputs) > forward.tolerance
    faithful = forward.faithful_at(images, outputs)
    assert faithful is not None
    assert faithful.dtype == torch.float32
    assert (
        ForwardPass(captured, images.device, dtypes=both[:1]).faithful_at(images, outputs) is None
    )
    assert forward.faithful_at(images, outputs + 1) is None


class Cudnn:
    """What cuDNN's fused convolutions compute, in plain PyTorch, and how often they were called."""

    def __init__(self, *, fails: bool) -> None:
        self.calls = {"relu": 0, "add_relu": 0}
        self._fails = fails

    def cudnn_convolution_relu(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, *settings: object
    ) -> Tensor:
        return self._run("relu", x, weight, bias, settings, 0.0)

    def cudnn_convolution_add_relu(
        self, x: Tensor, weight: Tensor, z: Tensor, alpha: float, bias: Tensor, *settings: object
    ) -> Tensor:
        return self._run("add_relu", x, weight, bias, settings, alpha * z)

    def _run(self, name, x, weight, bias, settings, residual) -> Tensor:
        self.calls[name] += 1
        assert weight.is_contiguous(memory_format=torch.channels_last)
        if self._fails:
            raise RuntimeError("no engine")
        stride, padding, dilation, groups = settings
        return torch.relu(
            torch.conv2d(x, weight, bias, stride, padding, dilation, groups) + residual
        )


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    ("network", "relu", "add_relu"),
    [(nets.ResidualNet, 1, 2), (networks.Mixed, 2, 0), (ReadTwice, 0, 0)],
)
def test_cudnns_fused_convolutions(
    network: type[nn.Module],
    relu: int,
    add_relu: int,
    fails: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If cuDNN has no kernel, PyTorch's operations run instead."""
    cudnn = Cudnn(fails=fails)
    monkeypatch.setattr(convolution, "aten", cudnn)
    monkeypatch.setattr(convolution, "has_cudnn", lambda: True)
    monkeypatch.setattr("dmbp.engine.forward.forward_pass.fuse_onednn", fuse_cudnn)
    model, images = network(), torch.randn(2, 3, 12, 12)
    forward = ForwardPass(captured_graph(model, images), images.device, dtypes=[torch.float32])
    for _ in range(2):
        forward(images)
    runs = 1 if fails else 2  # a layer without a kernel is not tried again
    assert cudnn.calls == {"relu": runs * relu, "add_relu": runs * add_relu}
    assert_agrees(forward, model, images, ROUNDING)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_left_to_the_model(dtype: torch.dtype) -> None:
    model, images = nets.FunctionalNet().to(dtype), torch.randn(2, 3, 8, 8, dtype=dtype)
    assert fast_forward(captured_graph(model, images), images) is None


def test_bfloat16_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On request, and if the CPU has instructions for it."""
    model, images = nets.ResidualNet(), torch.randn(2, 3, 8, 8)
    captured = captured_graph(model, images)
    monkeypatch.setattr(convolution, "_has_bfloat16", lambda: False)
    assert fast_forward(captured, images, dtypes=[torch.bfloat16]) is None
    monkeypatch.setattr(convolution, "_has_bfloat16", lambda: True)
    passes = ForwardPasses(dtypes=[torch.bfloat16])
    forward = passes.find(captured, images, outputs(model, images))
    assert forward is not None
    assert (forward.dtype, forward.fused_convolutions) == (torch.bfloat16, 4)
    assert_agrees(forward, model, images, HALF)


class ForTwo(nets.FunctionalNet):
    """Reads its batch size in Python."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.zeros(int(x.shape[0]), 1, 1, 1))


def test_graphs_for_one_batch_size_are_left_to_the_model() -> None:
    images = torch.randn(2, 3, 8, 8)
    captured = captured_graph(ForTwo(), images)
    assert captured.batch == 2
    assert fast_forward(captured, images) is None


class Scaled(nets.FunctionalNet):
    """Takes a second input."""

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return super().forward(x * scale)


def test_graphs_with_extra_inputs_are_left_to_the_model() -> None:
    images = torch.randn(2, 3, 8, 8)
    linearizer = Linearizer(Scaled().eval())
    scale = torch.tensor(2.0)
    linearizer.linearize(images, target=0, additional_forward_args=(scale,))
    (captured,) = linearizer._captured.values()
    assert captured.extra_inputs
    assert fast_forward(captured, images) is None


def test_without_onednn_the_model_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randn(2, 3, 8, 8)
    captured = captured_graph(nets.FunctionalNet(), images)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert fast_forward(captured, images) is None


def test_a_graph_that_fails_is_left_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randn(2, 3, 8, 8)
    captured = captured_graph(nets.FunctionalNet(), images)
    assert fast_forward(captured, images) is not None

    def has_no_kernel(*_: object) -> Tensor:
        raise NotImplementedError

    pooling = next(node for node in captured.graph.nodes if "mean" in str(node.target))
    monkeypatch.setattr(pooling, "target", has_no_kernel)
    assert fast_forward(captured, images) is None


def test_precision_and_mode_of_the_caller_do_not_matter() -> None:
    model, images = nets.ResidualNet(), torch.randn(3, 3, 8, 8)
    forward = fast_forward(captured_graph(model, images), images)
    assert forward is not None
    expected = forward(images)
    assert not expected.requires_grad
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        found = forward(images)
    assert not found.is_inference()
    assert torch.equal(found, expected)


@torch.no_grad()
def test_changed_parameters_are_noticed() -> None:
    """Also if outputs change by less than the tolerance, or PyTorch does not count the change."""
    model, images = nets.ResidualNet(), torch.randn(2, 3, 8, 8)
    captured = captured_graph(model, images)
    forward = fast_forward(captured, images)
    assert forward is not None
    assert forward.is_current()
    model.conv1.weight.mul_(1 + 1e-6)
    assert relative_error(forward(images), model(images)) <= ROUNDING
    assert not forward.is_current()
    forward = fast_forward(captured, images)
    assert forward is not None
    assert forward.is_current()
    model.conv1.weight.data.mul_(1 + 1e-6)
    assert relative_error(forward(images), model(images)) <= ROUNDING
    assert not forward.is_current()


def test_a_step_of_a_fused_optimizer_is_noticed() -> None:
    """PyTorch does not count it as a change."""
    model, images = nets.ResidualNet(), torch.randn(2, 3, 8, 8)
    forward = fast_forward(captured_graph(model, images), images)
    assert forward is not None
    optimizer = torch.optim.SGD(model.parameters(), 1e-6, fused=True)
    counted = model.conv1.weight._version
    model(images).sum().backward()
    optimizer.step()
    with torch.no_grad():
        assert relative_error(forward(images), model(images)) <= 1e-4
        assert not forward.is_current()
    assert model.conv1.weight._version == counted


def test_fingerprints() -> None:
    """They tell every kind of number apart, and NaN is the same as itself."""
    tensors = [
        torch.randn(1000),
        torch.randn(7, 9).half(),
        torch.randn(70, dtype=torch.float64),
        torch.randn(3, dtype=torch.complex64),
        torch.ones(70, dtype=torch.bool),
        torch.tensor(3),
        torch.zeros(0),
        torch.full((2,), torch.nan),
    ]
    first = fingerprint(tensors)
    assert fingerprint(tensors) == first
    for tensor in tensors[:6]:
        flat = tensor.data.view(-1)
        kept = flat[-1].clone()
        flat[-1] = ~kept if tensor.dtype == torch.bool else kept * 1.01 + 1
        assert fingerprint(tensors) != first, tensor.dtype
        flat[-1] = kept


@torch.no_grad()
def test_forward_passes_are_kept_and_built_again() -> None:
    model, images = nets.ResidualNet(), torch.randn(2, 3, 8, 8)
    captured, passes = captured_graph(model, images), ForwardPasses()
    first = passes.find(captured, images, model(images))
    assert first is not None
    assert passes.find(captured, images, model(images)) is first
    for change in (model.bn1.running_mean, model.conv1.weight.data):
        change.add_(1)
        again = passes.find(captured, images, model(images))
        assert again is not None
        assert again is not first
        assert_agrees(again, model, images, ROUNDING)
        first = again


@torch.no_grad()
def test_a_forward_pass_that_disagrees_is_never_returned() -> None:
    model, images = nets.ResidualNet(), torch.randn(2, 3, 8, 8)
    captured, passes = captured_graph(model, images), ForwardPasses()
    first = passes.find(captured, images, model(images))
    assert first is not None
    assert passes.find(captured, images, 1.01 * model(images)) is None
    assert passes.find(captured, images, model(images)) is first  # it is judged at each image anew


class Cancelling(nn.Module):
    """Adds large numbers that cancel, and so mostly rounding errors, to what bright images give."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x))
        bright = 1e3 * torch.relu(x - 3)
        return self.fc((x + bright - bright.mean((2, 3), keepdim=True)).mean((2, 3)))


def test_a_map_does_not_depend_on_what_was_explained_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(convolution, "_has_bfloat16", lambda: True)
    model, image = Cancelling().eval(), torch.rand(1, 3, 24, 24)
    bright = image + 20 * torch.rand_like(image)

    def rise(precision: str) -> RISE:
        return RISE(model, masks=1000, precision=precision)

    def maps(images: list[Tensor]) -> list[Tensor]:
        method = rise("bfloat16")
        return [method.attribute(image, target=1) for image in images]

    (alone,) = maps([image])
    _, after = maps([bright, image])
    assert torch.equal(after, alone)
    assert not torch.equal(alone, rise("tf32").attribute(image, target=1))


def test_forward_passes_are_left_out_of_copies() -> None:
    model, images = nets.ResidualNet(), torch.randn(2, 3, 8, 8)
    passes = ForwardPasses()
    passes.find(captured_graph(model, images), images, outputs(model, images))
    for other in (copy.deepcopy(passes), pickle.loads(pickle.dumps(passes))):
        assert not other._kept


@CUDA
@pytest.mark.parametrize("name", [*networks.FAMILIES, "functional", "leaky+prelu", "mlp"])
def test_on_a_gpu(name: str) -> None:
    model, images = NETWORKS[name]()
    nets.randomise_statistics(model)
    model, images = model.cuda().eval(), images.cuda()
    forward = fast_forward(captured_graph(model, images), images)
    assert forward is not None
    assert forward.dtype == torch.float16
    for _ in range(3):  # recorded and replayed
        assert_agrees(forward, model, images, HALF)


@CUDA
@pytest.mark.parametrize("network", [*CONVOLUTIONAL, *WITHOUT_CONVOLUTIONS, ReadTwice, Heads])
def test_small_networks_on_a_gpu(network: type[nn.Module]) -> None:
    model, images = network().cuda(), torch.randn(2, 3, 12, 12, device="cuda")
    forward = fast_forward(captured_graph(model, images), images)
    assert forward is not None
    for _ in range(3):
        assert_agrees(forward, model, images, HALF)


class Replay:
    """Stands for a CUDA graph, and counts how often it is replayed."""

    replays = 0

    def __init__(self, function, *arguments: Tensor) -> None:
        self._function = function

    def __call__(self, *arguments: Tensor) -> Tensor:
        type(self).replays += 1
        return self._function(*arguments)


class NotRecordable:
    """Stands for a CUDA graph of an operation that cannot be recorded."""

    def __init__(self, function, *arguments: Tensor) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")


def test_a_batch_size_is_recorded_when_it_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "RecordedBatch", Replay)
    recorder = recording.Recorder(torch.sin)
    sizes = (2, 3, 2, 2, 3, *(recording.MAX_BATCH + 1,) * 3)
    replays = []
    for size in sizes:
        images = torch.randn(size, 3)
        assert torch.equal(recorder(images), torch.sin(images))
        replays.append(Replay.replays)
    assert replays == [0, 0, 1, 2, 3, 3, 3, 3]


def test_what_cannot_be_recorded_runs_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "RecordedBatch", NotRecordable)
    recorder, images = recording.Recorder(torch.sin), torch.randn(2, 3)
    for _ in range(3):
        assert torch.equal(recorder(images), torch.sin(images))


@CUDA
def test_recorded_gradients_are_the_same() -> None:
    model, images = nets.ResidualNet().cuda(), torch.randn(8, 3, 16, 16, device="cuda")
    captured = captured_graph(model, images)
    settings = {"dtypes": [torch.bfloat16], "is_differentiable": True}
    eager = ForwardPass(captured, images.device, **settings, is_recorded=False)
    recorded = ForwardPass(captured, images.device, **settings)
    weights = torch.randn_like(outputs(model, images))
    expected = [eager.gradients(scale * images, weights / scale) for scale in (1, 2, 3, 4)]
    found = [recorded.gradients(scale * images, weights / scale) for scale in (1, 2, 3, 4)]
    assert recorded._gradients._recordings
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@CUDA
def test_recordings_compute_the_same() -> None:
    model, images = nets.ResidualNet().cuda(), torch.randn(8, 3, 16, 16, device="cuda")
    captured = captured_graph(model, images)
    settings = {"dtypes": [torch.float16]}
    eager = ForwardPass(captured, images.device, **settings, is_recorded=False)
    recorded = ForwardPass(captured, images.device, **settings)
    expected = [eager(scale * images) for scale in (1, 2, 3, 4)]
    found = [recorded(scale * images) for scale in (1, 2, 3, 4)]
    assert recorded._run._recordings
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
