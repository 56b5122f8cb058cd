"""Tangents, secants and pieces in place of smooth activations."""

import math

import pytest
import torch
from torch import Tensor, nn

import dmbp
from dmbp.errors import InputError
from dmbp.linear.lines import Pieces, line_name, line_of, secant, tangent
from tests.tolerance import FLOAT64, relative


class QuickGELU(nn.Module):
    """A GELU by a sigmoid."""

    def forward(self, z: Tensor) -> Tensor:
        return z * torch.sigmoid(1.702 * z)


ACTIVATIONS = (
    *(nn.Sigmoid(), nn.Tanh(), nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.Hardswish()),
    *(nn.Hardsigmoid(), nn.Mish(), nn.ELU(), nn.SELU(), nn.CELU(0.5), nn.Softplus()),
    *(nn.Softsign(), nn.LogSigmoid(), QuickGELU()),
)
POINTS = torch.tensor([-30.0, -3.0, -1e-9, 0.0, 1e-9, 0.5, 30.0], dtype=torch.float64)


class Net(nn.Sequential):
    """A few layers of one smooth activation."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__(
            *(nn.Conv2d(3, 6, 3), activation, nn.Conv2d(6, 6, 3), activation, nn.Flatten()),
            *(nn.Linear(96, 8), activation, nn.Linear(8, 4)),
        )


def images() -> Tensor:
    return torch.randn(2, 3, 8, 8, dtype=torch.float64)


@pytest.mark.parametrize("line", [tangent, secant])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_lines_take_the_activations_value(activation: nn.Module, line: object) -> None:
    piece = line(activation, POINTS)
    assert relative(piece(POINTS), activation(POINTS)) <= FLOAT64
    assert torch.isfinite(piece.slope).all()


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_a_secant_goes_through_zero(activation: nn.Module) -> None:
    away = POINTS[POINTS.abs() > 0.1]
    origin = torch.zeros_like(away)
    assert torch.allclose(secant(activation, away)(origin), activation(origin), atol=1e-12)


def test_the_root_of_zero_is_finite() -> None:
    piece = tangent(torch.sqrt, torch.zeros(1))
    assert piece(torch.ones(1)).tolist() == [0.0]


def test_pieces_by_hand() -> None:
    """Two pieces of z² on [−2, 2] are |2 z|; beyond, its tangents."""
    points = torch.tensor([-3.0, -1.0, 0.5, 2.0, 3.0], dtype=torch.float64)
    piece = Pieces(2, reach=2.0)(torch.square, points)
    assert piece.slope.tolist() == [-4.0, -2.0, 2.0, 2.0, 4.0]
    assert piece(points).tolist() == [8.0, 2.0, 1.0, 4.0, 8.0]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_networks_of_secants_are_exact(activation: nn.Module) -> None:
    """`test_rules.py` has the same test for tangents."""
    model, inputs = Net(activation).double().eval(), images()
    net = dmbp.linearize(model, inputs, target=1, smooth="secant")
    assert relative(net.value(), model(inputs)[:, 1]) <= FLOAT64
    assert net.approximation_error == 0.0


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.Sigmoid()], ids=str)
def test_pieces_converge_with_the_square_of_their_number(activation: nn.Module) -> None:
    model, inputs = Net(activation).double().eval(), images()
    errors: list[float] = []
    for count in (8, 32, 128, 512):
        net = dmbp.linearize(model, inputs, target=1, smooth=Pieces(count))
        assert net.exactness <= FLOAT64
        errors.append(net.approximation_error)
    rate = math.log(errors[0] / errors[-1], 64)
    assert 1.7 <= rate <= 2.3


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_pieces_come_near_every_activation(activation: nn.Module) -> None:
    model, inputs = Net(activation).double().eval(), 3 * images()
    few, many = (
        dmbp.linearize(model, inputs, target=1, smooth=Pieces(count)) for count in (14, 896)
    )
    assert few.approximation_error > 0
    assert many.approximation_error <= few.approximation_error / 500  # 64² at best


def test_pieces_are_the_network_with_interpolated_activations() -> None:
    class Interpolated(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return Pieces(6, reach=3.0)(torch.tanh, z)(z)

    model, inputs = Net(nn.Tanh()).double().eval(), images()
    net = dmbp.linearize(model, inputs, target=1, smooth=Pieces(6, reach=3.0))
    approximated = Net(Interpolated()).double().eval()
    approximated.load_state_dict(model.state_dict())
    assert relative(net.value(), approximated(inputs)[:, 1]) <= FLOAT64
    with torch.no_grad():
        found, expected = approximated(inputs), model(inputs)
    error = ((found - expected).abs().amax(1) / expected.abs().amax(1)).max()
    assert net.approximation_error == pytest.approx(float(error))
    d = dmbp.DMBP(model, iterations=2, smooth=Pieces(6, reach=3.0)).explain(inputs, target=1)
    assert d.approximation_error == net.approximation_error


def test_piecewise_linear_networks_need_no_approximation() -> None:
    model, inputs = Net(nn.ReLU()).double().eval(), images()
    assert dmbp.linearize(model, inputs, target=1, smooth=Pieces(2)).approximation_error == 0.0


@pytest.mark.parametrize(
    ("text", "line"),
    [
        *(("tangent", tangent), ("secant", secant)),
        *(("pieces:6", Pieces(6)), ("pieces:6:2.5", Pieces(6, reach=2.5))),
    ],
)
def test_lines_by_name(text: str, line: object) -> None:
    assert line_of(text) == line
    assert line_of(line_name(line_of(text))) == line


def test_pieces_may_be_written() -> None:
    model, inputs = Net(nn.Tanh()).double().eval(), images()
    named, made = (
        dmbp.linearize(model, inputs, target=1, smooth=smooth)
        for smooth in ("pieces:6:3", Pieces(6, reach=3.0))
    )
    assert named.approximation_error > 0
    assert torch.equal(named.pullback(), made.pullback())


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("tangents", r"by 'tangents'; did you mean 'tangent'\?"),
        ("piece:8", r"by 'piece:8'; did you mean 'pieces:16'\?"),
        ("0.02", "there are tangent, secant, pieces:16"),
        *((text, "written as pieces:16 or") for text in ("pieces", "pieces:0", "pieces:x")),
        *((text, "written as pieces:16 or") for text in ("pieces:4:-1", "pieces:4:inf")),
        ("pieces:4:1:1", "not 'pieces:4:1:1'"),
        *((thing, r"smooth is 'tangent', 'secant' or dmbp\.Pieces") for thing in (None, 3)),
    ],
)
def test_what_is_no_line(wrong: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        dmbp.DMBP(Net(nn.Tanh()), smooth=wrong)


def test_what_are_no_pieces() -> None:
    with pytest.raises(InputError, match="a number of pieces from 1"):
        Pieces(0)
