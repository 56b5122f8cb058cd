"""Tangents, secants and pieces that replace smooth activations."""

import math

import pytest
import torch
from torch import Tensor, nn

import dmbp
from dmbp.errors import InputError
from dmbp.linear.lines import Pieces, line_name, parse_line, secant, tangent
from tests.tolerance import FLOAT64, relative


class QuickGELU(nn.Module):
    """A GELU that is approximated by a sigmoid."""

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
    frozen = line(activation, POINTS)
    assert relative(frozen(POINTS), activation(POINTS)) <= FLOAT64
    assert torch.isfinite(frozen.slope).all()


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_a_secant_goes_through_zero(activation: nn.Module) -> None:
    away = POINTS[POINTS.abs() > 0.1]
    origin = torch.zeros_like(away)
    assert torch.allclose(secant(activation, away)(origin), activation(origin), atol=1e-12)


def test_the_root_of_zero_is_finite() -> None:
    line = tangent(torch.sqrt, torch.zeros(1))
    assert line(torch.ones(1)).tolist() == [0.0]


def test_two_pieces_of_a_square() -> None:
    """On [−2, 2] they are |2 z|, and outside they are the tangents."""
    points = torch.tensor([-3.0, -1.0, 0.5, 2.0, 3.0], dtype=torch.float64)
    lines = Pieces(2, reach=2.0)(torch.square, points)
    assert lines.slope.tolist() == [-4.0, -2.0, 2.0, 2.0, 4.0]
    assert lines(points).tolist() == [8.0, 2.0, 1.0, 4.0, 8.0]


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
def test_pieces_approximate_every_activation(activation: nn.Module) -> None:
    model, inputs = Net(activation).double().eval(), 3 * images()
    few, many = (
        dmbp.linearize(model, inputs, target=1, smooth=Pieces(count)) for count in (14, 896)
    )
    assert few.approximation_error > 0
    assert many.approximation_error <= few.approximation_error / 500  # at best 64²


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
    assert parse_line(text) == line
    assert parse_line(line_name(parse_line(text))) == line


def test_pieces_can_be_given_as_text() -> None:
    model, inputs = Net(nn.Tanh()).double().eval(), images()
    from_text, from_object = (
        dmbp.linearize(model, inputs, target=1, smooth=smooth)
        for smooth in ("pieces:6:3", Pieces(6, reach=3.0))
    )
    assert from_text.approximation_error > 0
    assert torch.equal(from_text.pullback(), from_object.pullback())


@pytest.mark.parametrize(
    ("smooth", "message"),
    [
        ("tangents", r"by 'tangents'; did you mean 'tangent'\?"),
        ("piece:8", r"by 'piece:8'; did you mean 'pieces:16'\?"),
        ("0.02", "there are tangent, secant, pieces:16"),
        *((text, "written as pieces:16 or") for text in ("pieces", "pieces:0", "pieces:x")),
        *((text, "written as pieces:16 or") for text in ("pieces:4:-1", "pieces:4:inf")),
        ("pieces:4:1:1", "not as 'pieces:4:1:1'"),
        *((thing, r"smooth must be 'tangent', 'secant' or dmbp\.Pieces") for thing in (None, 3)),
    ],
)
def test_invalid_settings_are_refused(smooth: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        dmbp.DMBP(Net(nn.Tanh()), smooth=smooth)


def test_pieces_need_a_positive_count() -> None:
    with pytest.raises(InputError, match=r"at least 1 piece and a reach above 0, got 0 and 8\.0"):
        Pieces(0)
