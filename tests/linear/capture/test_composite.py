"""Activations that a model writes out are treated as if they had a name."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import dmbp
from dmbp.errors import UnsupportedOperation
from dmbp.linear import LinearNetwork
from dmbp.linear.lines import Pieces, Smoothing, tangent
from tests.tolerance import FLOAT64, relative

Function = Callable[[Tensor], Tensor]

LINES: tuple[Smoothing, ...] = ("tangent", "secant", Pieces(16))
CURVE = math.sqrt(2 / math.pi)


def gelu_by_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(CURVE * (x + 0.044715 * x**3)))


def in_place(x: Tensor) -> Tensor:
    y = x * 1.0
    y *= functional.relu6(x + 3).div_(6)
    return y


PAIRS: dict[str, tuple[Function, Function]] = {
    "silu": (functional.silu, lambda x: x * torch.sigmoid(x)),
    "silu by exp": (functional.silu, lambda x: x / (1 + torch.exp(-x))),
    "silu, dropout inside": (
        functional.silu,
        lambda x: x * functional.dropout(torch.sigmoid(x), 0.3, False),
    ),
    "silu, cast inside": (functional.silu, lambda x: x * torch.sigmoid(x.double().clone())),
    "silu, detached inside": (functional.silu, lambda x: x * torch.sigmoid(x).detach()),
    "silu behind relu": (lambda x: functional.silu(x.relu()), lambda x: _silu(x.relu())),
    "silu beside a skip": (lambda x: x + functional.silu(x), lambda x: x + _silu(x)),
    "sigmoid by exp": (torch.sigmoid, lambda x: 1 / (1 + torch.exp(-x))),
    "hardswish": (functional.hardswish, lambda x: x * functional.relu6(x + 3) / 6),
    "hardswish in place": (functional.hardswish, in_place),
    "mish": (functional.mish, lambda x: x * torch.tanh(functional.softplus(x))),
    "gelu by tanh": (lambda x: functional.gelu(x, approximate="tanh"), gelu_by_tanh),
    "gelu": (functional.gelu, lambda x: x * (torch.erf(x / 2**0.5) + 1) * 0.5),
    "softplus": (functional.softplus, lambda x: torch.log1p(torch.exp(x))),
    "log-sigmoid": (functional.logsigmoid, lambda x: torch.log(torch.sigmoid(x))),
    "elu": (functional.elu, lambda x: torch.where(x > 0, x, torch.exp(x) - 1)),
}
"""An activation that has a name, and the same activation written out."""


def _silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


class Beta(nn.Module):
    """Swish with a learned β for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.linspace(0.5, 2.0, 6)[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(functional.softplus(self.beta) * x)


WRITTEN: dict[str, Function] = {
    "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "softsign": functional.softsign,
    "x² sigmoid(x)": lambda x: x**2 * torch.sigmoid(x),
    "squared relu": lambda x: functional.relu(x) ** 2,
    "squared relu by product": lambda x: (y := functional.relu(x)) * y,
    "inverse root": lambda x: x / torch.sqrt(1 + x**2),
    "squareplus": lambda x: (x + torch.sqrt(x * x + 4)) / 2,
    "swish with β": Beta(),
}
"""Activations that have no name in torch."""


class Net(nn.Module):
    """Two layers of one activation."""

    def __init__(self, activation: Function) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3)
        self.__dict__["activation"] = activation
        self.inner = activation if isinstance(activation, nn.Module) else None
        self.last = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.first(x) * 3)
        return self.last(self.activation(self.second(x)).mean((2, 3)))


def make_model(activation: Function) -> nn.Module:
    torch.manual_seed(0)
    return Net(activation).double().eval()


def images() -> Tensor:
    return torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def frozen(activation: Function, smooth: Smoothing = "tangent") -> LinearNetwork:
    return dmbp.linearize(make_model(activation), images(), target=1, smooth=smooth)


@pytest.mark.parametrize("smooth", LINES, ids=str)
@pytest.mark.parametrize("case", PAIRS)
def test_a_written_activation_is_the_named_one(case: str, smooth: Smoothing) -> None:
    """The sites are the same, and with any masks so are the value and the pullback."""
    named, written = (frozen(activation, smooth) for activation in PAIRS[case])
    assert [site.shape for site in written.sites] == [site.shape for site in named.sites]
    masks = [torch.rand(site.shape, dtype=torch.float64) for site in named.sites]
    of_named, of_written = (
        {site.name: mask for site, mask in zip(net.sites, masks, strict=True)}
        for net in (named, written)
    )
    assert relative(written.value(of_written), named.value(of_named)) <= FLOAT64
    assert relative(written.pullback(of_written), named.pullback(of_named)) <= FLOAT64


def test_a_written_activation_is_learned_as_the_named_one() -> None:
    found, expected = (
        dmbp.DMBP(make_model(activation), iterations=5).attribute(images(), target=1)
        for activation in PAIRS["hardswish in place"]
    )
    assert relative(found, expected) <= FLOAT64


@pytest.mark.parametrize("case", WRITTEN)
def test_activations_without_a_name(case: str) -> None:
    """Each is one site; tangents and secants take its value, and tangents its gradient."""
    model, inputs = make_model(WRITTEN[case]), images()
    net = frozen(WRITTEN[case])
    leaf = inputs.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(leaf)[:, 1].sum(), leaf)
    assert len(net.sites) == 2
    assert relative(net.pullback(), gradient) <= FLOAT64
    assert relative(net.value(), model(inputs)[:, 1]) <= FLOAT64
    assert relative(frozen(WRITTEN[case], "secant").value(), model(inputs)[:, 1]) <= FLOAT64


@pytest.mark.parametrize("case", WRITTEN)
def test_pieces_of_activations_without_a_name_converge(case: str) -> None:
    errors = [frozen(WRITTEN[case], Pieces(count)).approximation_error for count in (16, 1024)]
    assert 0 < errors[1] <= errors[0] / 500


def squeeze_excite(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x.mean((2, 3), keepdim=True))


def gated(x: Tensor) -> Tensor:
    value, gate = torch.cat([x, x.flip(1)], 1).chunk(2, 1)
    return value * torch.sigmoid(gate)


def broadcast(x: Tensor) -> Tensor:
    """Multiply (…, 1) by a row of constants, which changes the shape."""
    narrow = x.mean(3, keepdim=True)
    return narrow * torch.sigmoid(narrow * torch.ones(x.shape[3], dtype=x.dtype))


def written_norm(x: Tensor) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    return centred * (1 / torch.sqrt((centred * centred).mean(1, keepdim=True) + 0.1))


def attention(x: Tensor) -> Tensor:
    weights = torch.exp(x)
    return x * (weights / weights.sum(1, keepdim=True))


OTHERS: dict[str, tuple[Function, list[str]]] = {
    "squeeze and excite": (squeeze_excite, ["mul"]),
    "gated unit": (gated, ["mul"]),
    "a shape that changes": (broadcast, ["mul"]),
    "norm written out": (written_norm, []),
    "softmax written out": (attention, ["mul"]),
    "piecewise linear": (lambda x: x.relu() - 0.1 * (-x).relu(), ["relu", "relu"]),
    "relu by comparison": (lambda x: x * (x > 0) + x.relu(), ["relu"]),
    "a square": (lambda x: x * x + x.relu(), ["relu"]),
    "a power": (lambda x: x**3 + x.relu(), ["relu"]),
    "an exponential": (lambda x: torch.exp(x) + x.relu(), ["relu"]),
    "two names": (lambda x: torch.tanh(x.relu()), ["relu", "tanh"]),
    "two names in a sum": (lambda x: x - torch.tanh(x), ["tanh"]),
    "a size to divide by": (lambda x: x.relu() / torch.sqrt(x.mean(1, True) ** 2 + 1), ["relu"]),
}
"""Functions that are not composite activations, and the sites that they have."""


@pytest.mark.parametrize("case", OTHERS)
def test_other_functions_are_not_composite(case: str) -> None:
    activation, operations = OTHERS[case]
    model = nn.Sequential(nn.Conv2d(3, 6, 3), Layer(activation), nn.Flatten(), nn.LazyLinear(4))
    model = model.double().eval()
    model(images())
    net = dmbp.linearize(model, images(), target=1)
    assert [site.operation for site in net.sites] == operations
    assert relative(net.value(), model(images())[:, 1]) <= FLOAT64


class Layer(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def test_a_gate_that_is_read_elsewhere_is_a_site_of_its_own() -> None:
    def shared(x: Tensor) -> Tensor:
        gate = torch.sigmoid(x)
        return torch.cat([x * gate, gate], 1)[:, :6]

    net = frozen(shared)
    assert {site.operation for site in net.sites} == {"sigmoid", "sigmoid+mul"}
    leaf = images().requires_grad_()
    (gradient,) = torch.autograd.grad(make_model(shared)(leaf)[:, 1].sum(), leaf)
    assert relative(net.pullback(), gradient) <= FLOAT64


def test_an_activation_of_the_image_is_a_site_as_a_named_one_is() -> None:
    head = nn.Linear(3, 4).double()
    inputs = torch.randn(2, 3, dtype=torch.float64)
    for activation in (functional.silu, lambda x: x * torch.sigmoid(x)):
        net = dmbp.linearize(nn.Sequential(Layer(activation), head).eval(), inputs)
        assert [site.shape for site in net.sites] == [(2, 3)]


def test_a_programs_graph_is_left_alone() -> None:
    program = torch.export.export(make_model(WRITTEN["quick gelu"]), (images(),))
    before = str(program.graph)
    net = dmbp.linearize(program, images(), target=1)
    assert [site.operation for site in net.sites] == ["sigmoid+mul"] * 2
    assert str(program.graph) == before


def test_another_precision_inside() -> None:
    """The result of a region has the precision of its root, as later operations expect."""
    model = make_model(lambda x: _silu(x.double()).float()).float()
    net = dmbp.linearize(model, images().float(), target=1)
    assert [site.operation for site in net.sites] == ["sigmoid+mul"] * 2


def test_random_operations_are_refused_inside_too() -> None:
    model = make_model(lambda x: x * functional.dropout(torch.sigmoid(x), 0.5, True))
    with pytest.raises(UnsupportedOperation, match="it draws random numbers"):
        dmbp.linearize(model, images(), target=1)


def test_deeplift_takes_written_activations() -> None:
    model, inputs = make_model(WRITTEN["quick gelu"]), images()
    found = dmbp.methods()["deeplift"](model).attribute(inputs, target=1)
    change = model(inputs)[:, 1] - model(torch.zeros_like(inputs))[:, 1]
    assert relative(found.sum((1, 2, 3)), change) <= FLOAT64


def test_slopes_where_the_other_branch_overflows() -> None:
    line = tangent(PAIRS["elu"][1], torch.tensor([1000.0, -1000.0, 1.0]))
    assert line.slope.tolist() == [1.0, 0.0, 1.0]
