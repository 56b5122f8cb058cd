"""Every kind of layer: its linear network is exact at x, affine, and has the right gradient."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import dmbp
from dmbp.linear import Linearizer, LinearNetwork, Site
from tests import nets
from tests.tolerance import FLOAT64, relative

Function = Callable[[Tensor], Tensor]


class Wrapped(nn.Module):
    """A convolution, the layer under test, and a linear layer on its flattened output."""

    def __init__(self, layer: nn.Module | Function, channels: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.__dict__["layer"] = layer  # a module or a function, either of which may be replaced
        self.inner = layer if isinstance(layer, nn.Module) else None
        self.last = nn.LazyLinear(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(self.first(x)).flatten(1))


def _swap(x: Tensor) -> Tensor:
    first, second = x.chunk(2, 1)
    return torch.cat([second, first], 1)


def _shuffle(x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2).contiguous()
    return x.view(batch, channels, height, width)


def _relu_by_comparison(x: Tensor) -> Tensor:
    return x * (x > 0) + torch.where(x > 0.5, x, torch.zeros_like(x))


def _plus_a_constant_of_its_type(x: Tensor) -> Tensor:
    return x + torch.tensor(0.5).type_as(x) + x.relu().type_as(x)


def _written_into(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = 0.5
    y[:, 1] = y[:, 2]
    return y


def _written_over(x: Tensor) -> Tensor:
    y = x.relu() + 0.0
    y[:, 0] = 0.0
    return y.relu()


def _unpooled(x: Tensor) -> Tensor:
    pooled, index = functional.max_pool2d(x.relu(), 2, return_indices=True)
    return functional.max_unpool2d(pooled, index, 2)


def _film(x: Tensor, frozen: Function = lambda gate: gate) -> Tensor:
    """Scale activations by a factor of each channel, which is frozen because it is broadcast."""
    y = x.relu()
    scale, shift = (y.mean((2, 3)) * 3.0 - 1.0)[:, :, None, None], y.mean((2, 3), keepdim=True)
    return y * frozen(scale) + shift


def _view_made_before(x: Tensor) -> Tensor:
    y = x + 1
    view = y.view(y.shape[0], -1)
    y.relu_()
    return view


def _tokens(x: Tensor) -> Tensor:
    """Return (batch, position, channel), as in transformers."""
    return x.flatten(2).transpose(1, 2)


def _written_attention(x: Tensor, weigh: Function = lambda scores: scores.softmax(-1)) -> Tensor:
    z = _tokens(x)
    return weigh(z @ z.transpose(1, 2) / 3) @ (z * 2.0 - 1.0)


def _heads(x: Tensor) -> Tensor:
    """Return (batch, head, position, channel of the head)."""
    return _tokens(x).unflatten(2, (4, 2)).transpose(1, 2)


def _attention(x: Tensor) -> Tensor:
    z = _heads(x)
    return functional.scaled_dot_product_attention(z, z.sin(), z + 1.0, is_causal=True)


def _attention_frozen(x: Tensor) -> Tensor:
    z = _heads(x)
    at = z.detach()
    return functional.scaled_dot_product_attention(at, at.sin(), z + 1.0, is_causal=True)


def _grouped_queries(x: Tensor, queries: Function = lambda z: z) -> Tensor:
    z = _heads(x)
    few = queries(z[:, :2])
    return functional.scaled_dot_product_attention(queries(z), few, z[:, 2:], enable_gqa=True)


def _linear_attention(x: Tensor, hold: Function = lambda z: z) -> Tensor:
    z = _tokens(x)
    q, k = hold(z.relu()), hold((z + 0.1).relu())
    return q @ (k.transpose(1, 2) @ z) / (q @ hold(k.sum(1))[:, :, None] + 1e-3)


def _factorised(x: Tensor, hold: Function = lambda z: z) -> Tensor:
    """Mix values by keys, and read the mix by queries."""
    z = _tokens(x)
    return hold(z * 3.0) @ (hold(z.softmax(1)).transpose(1, 2) @ z)


def _written_softmax(scores: Tensor) -> Tensor:
    weights = scores.exp()
    return weights / weights.sum(-1, keepdim=True)


def _response_norm(x: Tensor, hold: Function = lambda z: z) -> Tensor:
    size = functional.pad(hold(x).square(), (0, 0, 0, 0, 1, 1)).unfold(1, 3, 1).mean(-1)
    return x / (1.0 + 0.5 * size) ** 0.75


def _grn(x: Tensor, hold: Function = lambda z: z) -> Tensor:
    """Apply the global response normalisation of ConvNeXt v2."""
    size = hold(x).norm(2, (2, 3), keepdim=True)
    return x + 0.3 * x * (size / (size.mean(1, keepdim=True) + 1e-6))


def _squeeze_excite(x: Tensor, hold: Function = lambda z: z) -> Tensor:
    return x.relu() * hold((x.relu().mean((2, 3), keepdim=True) * 3.0 - 0.5).sigmoid())


def _gated(x: Tensor, hold: Function = lambda z: z) -> Tensor:
    value, gate = x.chunk(2, 1)
    return value * hold(functional.gelu(gate))


def _norm(x: Tensor, dimensions: tuple[int, ...], epsilon: float = 1e-5) -> Tensor:
    """Normalise by a detached deviation."""
    deviation = (x.var(dimensions, unbiased=False, keepdim=True) + epsilon).sqrt().detach()
    return (x - x.mean(dimensions, keepdim=True)) / deviation


def _dynamic(x: Tensor, hold: Function = lambda z: z) -> Tensor:
    """Convolve each image with a weight that is computed from it."""
    kernel = hold(x.mean((2, 3)).sin()).reshape(-1, 1, 1, 1)
    mixed = functional.conv2d(x.reshape(1, -1, 8, 8), kernel, groups=kernel.shape[0])
    return mixed.reshape(x.shape)


LAYERS: dict[str, nn.Module | Function] = {
    "relu module": nn.ReLU(),
    "relu in place": nn.ReLU(inplace=True),
    "relu function": functional.relu,
    "relu method": Tensor.relu,
    "relu by comparison": _relu_by_comparison,
    "relu6": nn.ReLU6(),
    "hardtanh": nn.Hardtanh(-0.3, 0.4),
    "leaky relu": nn.LeakyReLU(0.3),
    "prelu": nn.PReLU(8),
    "prelu shared": nn.PReLU(),
    "rrelu": nn.RReLU(),
    "threshold": nn.Threshold(0.1, -0.2),
    "clamp": lambda x: x.clamp(-0.1, 0.3),
    "clamp below": lambda x: x.clamp(min=0.1),
    "clamp above": lambda x: torch.clamp_max(x, 0.1),
    "absolute": torch.abs,
    "softshrink": nn.Softshrink(0.1),
    "hardshrink": nn.Hardshrink(0.1),
    "batch norm": nn.BatchNorm2d(8),
    "dropout": nn.Dropout(),
    "dropout2d": nn.Dropout2d(),
    "max pool": nn.MaxPool2d(3, 2, 1),
    "max pool dilated": nn.MaxPool2d(2, 1, 0, 2),
    "max pool ceil": nn.MaxPool2d(3, 2, ceil_mode=True),
    "max pool 1d": lambda x: functional.max_pool1d(x.flatten(2), 2),
    "max pool 3d": lambda x: functional.max_pool3d(x, 2),
    "average pool": nn.AvgPool2d(3, 2, 1),
    "adaptive average": nn.AdaptiveAvgPool2d((3, 2)),
    "adaptive max": nn.AdaptiveMaxPool2d((3, 2)),
    "maximum": lambda x: torch.maximum(x, -0.5 * x),
    "minimum": lambda x: torch.minimum(x, -0.5 * x),
    "amax": lambda x: x.amax((2, 3)),
    "amax kept": lambda x: x.amax(1, keepdim=True),
    "amin": lambda x: x.amin(-1),
    "max over a dimension": lambda x: x.max(2).values,
    "min over a dimension": lambda x: x.min(dim=1, keepdim=True)[0],
    "depthwise": nn.Conv2d(8, 8, 3, padding=1, groups=8),
    "grouped": nn.Conv2d(8, 4, 3, groups=2),
    "dilated": nn.Conv2d(8, 4, 3, dilation=2),
    "same padding": nn.Conv2d(8, 4, 3, padding="same"),
    "circular padding": nn.Conv2d(8, 4, 3, padding=1, padding_mode="circular"),
    "reflecting padding": nn.Conv2d(8, 4, 3, padding=1, padding_mode="reflect"),
    "transposed": nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1),
    "conv 1d": lambda x: functional.conv1d(x.flatten(2), torch.ones(2, 8, 3, dtype=x.dtype)),
    "bilinear up": nn.Upsample(scale_factor=2, mode="bilinear"),
    "nearest up": nn.Upsample(scale_factor=2, mode="nearest"),
    "bicubic up": nn.Upsample(size=(9, 9), mode="bicubic", align_corners=True),
    "interpolate down": lambda x: functional.interpolate(x, scale_factor=0.5, mode="bilinear"),
    "pixel shuffle": nn.PixelShuffle(2),
    "pad": nn.ZeroPad2d((1, 2, 0, 3)),
    "pad with a constant": lambda x: functional.pad(x, (1, 1), value=0.5),
    "split and concatenate": _swap,
    "channel shuffle": _shuffle,
    "permute": lambda x: x.permute(0, 2, 3, 1).reshape(x.shape[0], -1),
    "slice": lambda x: x[:, 1:5, ::2, -3:],
    "index": lambda x: x[:, [3, 1, 1]],
    "flip and roll": lambda x: x.flip(-1).roll(1, 2),
    "stack and unbind": lambda x: torch.stack(x.unbind(1), -1),
    "constants": lambda x: 2.0 - x * 3.0 / 4.0 + 1.0,
    "sum": lambda x: x.sum((2, 3)),
    "matrix product": lambda x: x @ torch.ones(8, 2, dtype=x.dtype),
    "einsum": lambda x: torch.einsum("bchw,cd->bdhw", x, torch.ones(8, 2, dtype=x.dtype)),
    "detached": lambda x: x.detach() + x.relu(),
    "cast": lambda x: x.to(torch.float64).double() * 2,
    "written into": _written_into,
    "a constant of its type": _plus_a_constant_of_its_type,
    "a view made before": _view_made_before,
    "constants by batch size": lambda x: torch.cat([x, torch.zeros(x.shape[0], 1, 8, 8).to(x)], 1),
    "masked fill": lambda x: x.masked_fill(torch.eye(8, dtype=torch.bool), 0.3),
    "sigmoid": nn.Sigmoid(),
    "tanh": torch.tanh,
    "silu": nn.SiLU(),
    "silu in place": nn.SiLU(inplace=True),
    "silu written out": lambda x: x * torch.sigmoid(x),
    "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "gelu": nn.GELU(),
    "gelu by tanh": nn.GELU("tanh"),
    "hardswish": nn.Hardswish(),
    "hardsigmoid": nn.Hardsigmoid(),
    "mish": nn.Mish(),
    "elu": nn.ELU(0.7),
    "selu": nn.SELU(),
    "celu": nn.CELU(0.5),
    "softplus": nn.Softplus(2.0),
    "softsign": nn.Softsign(),
    "log-sigmoid": nn.LogSigmoid(),
    "tanhshrink": nn.Tanhshrink(),
    "glu": nn.GLU(1),
    "layer norm": nn.LayerNorm([8, 8]),
    "layer norm of channels": lambda x: functional.layer_norm(x.permute(0, 2, 3, 1), [8]),
    "group norm": nn.GroupNorm(2, 8),
    "instance norm": nn.InstanceNorm2d(8, affine=True),
    "instance norm, tracked": nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
    "rms norm": nn.RMSNorm([8]),
    "norm written out": lambda x: (
        (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 0.1).sqrt()
    ),
    "local response norm": nn.LocalResponseNorm(3, 0.5, 0.75, 1.0),
    "L2 normalisation": lambda x: functional.normalize(x, dim=1),
    "global response norm": _grn,
    "deviation": lambda x: x.std((2, 3)),
    "L2 pooling": lambda x: functional.avg_pool2d(x.square(), 2).sqrt(),
    "log-sum-exp": lambda x: x.logsumexp((2, 3)),
    "generalised mean": lambda x: x.clamp(min=0.1).pow(3.0).mean((2, 3)).pow(1 / 3),
    "squeeze and excite": _squeeze_excite,
    "gated unit": _gated,
    "product with the mean": lambda x: x.mean((2, 3), keepdim=True) * x,
    "square by product": lambda x: x * x,
    "reciprocal": lambda x: 1.0 / (x.square() + 2.0),
    "attention": _attention,
    "attention written out": _written_attention,
    "attention with softmax written out": lambda x: _written_attention(x, _written_softmax),
    "attention, queries in groups": _grouped_queries,
    "attention without softmax": _linear_attention,
    "factorised attention": _factorised,
    "a weight for each image": _dynamic,
    "activations in an einsum": lambda x: torch.einsum("bchw,bdhw->bcd", x.sigmoid(), x),
    "batched matrices": lambda x: torch.baddbmm(x[:, 0], x[:, 1], x[:, 2].softmax(-1)),
    "largest k": lambda x: x.topk(3, 1).values.mean(1),
    "sorted": lambda x: x.flatten(1).sort(1, descending=True)[0],
    "gather": lambda x: x.gather(1, x.argmax(1, keepdim=True)),
    "windows": lambda x: x.unfold(2, 4, 4).unfold(3, 4, 4).roll(1, 4).permute(0, 2, 3, 4, 5, 1),
    "where": lambda x: torch.where(x > 0.2, x, -0.5 * x),
    "pixel unshuffle": nn.PixelUnshuffle(2),
    "unpooling": _unpooled,
    "written over after an activation": _written_over,
    "scattered": lambda x: torch.zeros_like(x).scatter(1, x.argsort(1), x.relu()),
    "median": lambda x: x.median(1).values + x.kthvalue(2, 1).values,
    "sorted stably": lambda x: x.flatten(1).sort(stable=True, dim=1)[0],
    "product along": lambda x: x[:, :3].prod(1),
    "log-softmax": lambda x: x.log_softmax(1),
    "clamp at its limits": lambda x: x.relu().clamp(0, 0.5).clamp(0, 0.5),
    "hardtanh at its limits": lambda x: functional.hardtanh(functional.hardtanh(x, 0, 0.5), 0, 0.5),
    "shift and scale": _film,
    "bilinear": lambda x: functional.bilinear(x.relu(), x, torch.ones(2, 8, 8).to(x)),
}

ORACLES: dict[str, Function] = {
    "detached": lambda x: x + x.relu(),  # autograd stops on that path, the network does not
    "glu": lambda x: x[:, :4] * x[:, 4:].detach().sigmoid(),
    "layer norm": lambda x: _norm(x, (2, 3)),
    "layer norm of channels": lambda x: _norm(x.permute(0, 2, 3, 1), (3,)),
    "group norm": lambda x: _norm(x.reshape(-1, 2, 4, 8, 8), (2, 3, 4)),
    "instance norm": lambda x: _norm(x, (2, 3)),
    "rms norm": lambda x: x * functional.rms_norm(x, [8]).detach() / x.detach(),
    "norm written out": lambda x: (
        (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 0.1).sqrt().detach()
    ),
    "local response norm": lambda x: _response_norm(x, Tensor.detach),
    "L2 normalisation": lambda x: x / x.detach().norm(dim=1, keepdim=True),
    "global response norm": lambda x: _grn(x, Tensor.detach),
    "squeeze and excite": lambda x: _squeeze_excite(x, Tensor.detach),
    "gated unit": lambda x: _gated(x, Tensor.detach),
    "product with the mean": lambda x: x.mean((2, 3), keepdim=True).detach() * x,
    "attention": _attention_frozen,
    "attention written out": lambda x: _written_attention(x, lambda s: s.softmax(-1).detach()),
    "attention with softmax written out": lambda x: _written_attention(
        x, lambda s: s.softmax(-1).detach()
    ),
    "attention, queries in groups": lambda x: _grouped_queries(x, Tensor.detach),
    "factorised attention": lambda x: _factorised(x, Tensor.detach),
    "attention without softmax": lambda x: _linear_attention(x, Tensor.detach),
    "a weight for each image": lambda x: _dynamic(x, Tensor.detach),
    "activations in an einsum": lambda x: torch.einsum("bchw,bdhw->bcd", x.sigmoid().detach(), x),
    "batched matrices": lambda x: torch.baddbmm(x[:, 0], x[:, 1], x[:, 2].softmax(-1).detach()),
    "shift and scale": lambda x: _film(x, Tensor.detach),
    "bilinear": lambda x: functional.bilinear(x.relu().detach(), x, torch.ones(2, 8, 8).to(x)),
}
"""Layers in which a rule freezes what autograd differentiates, with the frozen part detached."""


@dataclass(frozen=True)
class Linearized:
    """A network around one layer, captured once for all tests of that layer."""

    name: str
    model: nn.Module
    inputs: Tensor
    linearizer: Linearizer
    net: LinearNetwork


@pytest.fixture(params=LAYERS, ids=str, scope="module")
def linearized(request: pytest.FixtureRequest) -> Linearized:
    torch.manual_seed(0)
    model = Wrapped(LAYERS[request.param]).double().eval()
    inputs = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    model(inputs)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    linearizer = Linearizer(model)
    net = linearizer.linearize(inputs, target=2)
    return Linearized(request.param, model, inputs, linearizer, net)


def test_value_is_the_models_output(linearized: Linearized) -> None:
    expected = linearized.model(linearized.inputs)[:, 2]
    assert relative(linearized.net.value(), expected) <= FLOAT64


def test_network_is_affine_and_pullback_its_slope(linearized: Linearized) -> None:
    """F(x + d) − F(x) = ⟨pullback, d⟩ for d far beyond any gate's flip; detached paths count."""
    net, inputs = linearized.net, linearized.inputs
    masks = {site.name: torch.rand(site.shape, dtype=torch.float64) for site in net.sites}
    displacement = 10 * torch.randn_like(inputs)

    def masked(site: Site, streams: list[Tensor]) -> list[Tensor]:
        return [stream * masks[site.name] for stream in streams]

    far = net.propagate([inputs + displacement], masked)[0]
    along = (net.pullback(masks) * displacement).sum((1, 2, 3))
    assert relative(far - net.value(masks), along) <= FLOAT64


def test_pullback_is_the_gradient_of_what_is_not_frozen(linearized: Linearized) -> None:
    """The model's own gradient, if nothing but gates, lines and winners is frozen."""
    expected = copy.copy(linearized.model)
    expected.__dict__["layer"] = ORACLES.get(linearized.name, linearized.model.layer)
    leaf = linearized.inputs.clone().requires_grad_()
    gradient = torch.autograd.grad(expected(leaf)[:, 2].sum(), leaf)[0]
    assert relative(linearized.net.pullback(), gradient) <= FLOAT64


def test_one_capture_serves_every_batch_size(linearized: Linearized, exports: list[object]) -> None:
    for count in (1, 2, 3):
        inputs = linearized.inputs[:count]
        net = linearized.linearizer.linearize(inputs, target=0)
        assert relative(net.value(), linearized.model(inputs)[:, 0]) <= FLOAT64
    assert not exports


def test_offsets_count_as_bias() -> None:
    """Where ReLU6 saturates its slope is zero, and six is a bias that the mask scales."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU6(), nn.Linear(1, 1)).double().eval()
    nn.init.constant_(model[0].weight, 1.0)
    nn.init.constant_(model[2].weight, 2.0)
    nn.init.constant_(model[2].bias, 0.5)
    net = dmbp.linearize(model, torch.tensor([[9.0], [3.0]], dtype=torch.float64), target=0)
    (site,) = net.sites
    half = {site.name: torch.full(site.shape, 0.5, dtype=torch.float64)}
    assert net.value().tolist() == [12.5, 6.5]
    assert net.value(half).tolist() == [6.5, 3.5]
    assert net.pullback(half).tolist() == [[0.0], [1.0]]


def _as_weight(x: Tensor) -> Tensor:
    return functional.linear(torch.ones(5, 8, dtype=x.dtype), x[:, 0, 0]).T


REFUSED: dict[str, tuple[Function, str, str]] = {
    "an FFT": (lambda x: torch.fft.rfft2(x).abs(), "aten.fft_rfft2", "complex"),
    "a cumulative product": (lambda x: x.cumprod(1), "aten.cumprod", "no rule"),
    "a weight alone": (_as_weight, "aten.linear", "not linear"),
    "a random layer": (lambda x: functional.dropout(x, 0.5, True), "aten.dropout", "draws random"),
    "rounding": (lambda x: x.to(torch.int64).to(x.dtype), "aten.", ""),
    "integer division": (lambda x: torch.div(x, 2.0, rounding_mode="floor"), "aten.div", "no rule"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_linear_is_refused_by_name(case: str) -> None:
    layer, operation, reason = REFUSED[case]
    model = Wrapped(layer).eval()
    inputs = torch.randn(2, 3, 8, 8)
    model(inputs)
    with pytest.raises(dmbp.errors.UnsupportedOperation) as caught:
        dmbp.linearize(model, inputs, target=0)
    assert operation in str(caught.value)
    assert reason in str(caught.value)


def test_refusal_names_the_module() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Sequential(nn.ReLU(), nets.Spectral()), nn.Flatten()
    )
    with pytest.raises(
        dmbp.errors.UnsupportedOperation, match=r"aten\.fft_rfft2\.default at '1\.1'"
    ):
        dmbp.linearize(model.eval(), torch.randn(1, 3, 8, 8), target=0)


class Stem(nn.Module):
    """A batch norm whose output is transposed into tokens, as in LeViT."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.mix, self.fc = nn.Linear(8, 8), nn.Linear(8, 5)
        nn.init.uniform_(self.norm.weight, 0.5, 2.0)
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(self.conv(x)).flatten(2).transpose(1, 2)
        return self.fc(torch.relu(self.mix(tokens)).square().mean(1))


class DecomposedStem(Stem):
    """Has an operation without a rule, so that it is decomposed, and batch norm with it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.addcmul(x, x, torch.ones_like(x)))


@pytest.mark.parametrize("make", [Stem, DecomposedStem])
def test_batch_norm_of_a_single_image(make: type[nn.Module]) -> None:
    """PyTorch's own gradient is wrong there, so the difference of two outputs is the reference."""
    model, image = make().double().eval(), torch.randn(1, 3, 8, 8, dtype=torch.float64)
    step = 1e-6 * torch.randn_like(image)
    expected = (model(image + step) - model(image - step))[0, 1] / 2
    slope = dmbp.linearize(model, image, target=1).pullback()
    torch.testing.assert_close((slope * step).sum(), expected, rtol=1e-4, atol=0)
    maps = dmbp.methods()["gradient"](model).attribute(image, target=1)
    torch.testing.assert_close((maps / image * step).sum(), expected, rtol=1e-4, atol=0)
