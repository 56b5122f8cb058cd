"""Learning: the terms add up, each objective falls, and rows are independent."""

import pytest
import torch

import dmbp
from dmbp.decompose import PRESETS, Settings
from dmbp.decompose.learn import decompose_network
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import Terms
from dmbp.errors import CaptureError, InputError
from tests import nets
from tests.tolerance import BATCH, FLOAT64, relative

INPUTS = (3, 3, 16, 16)


def split(objective: str = "all", iterations: int = 30) -> dmbp.Decomposition:
    torch.manual_seed(1)
    model = nets.ResidualNet().double().eval()
    net = dmbp.linearize(model, torch.randn(INPUTS, dtype=torch.float64), target=2)
    return decompose_network(net, Settings(objective=objective, iterations=iterations))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_terms_add_up(objective: str) -> None:
    d = split(objective)
    total = d.positive_output + d.negative_output + d.nuisance_output
    assert relative(total, d.output) <= FLOAT64
    history = d.history.positive + d.history.negative + d.history.nuisance
    assert relative(history, d.output.expand_as(history)) <= FLOAT64
    assert d.history.positive.shape == (30, 3)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_objective_falls(objective: str) -> None:
    d = split(objective)
    loss = OBJECTIVES[objective]
    before = loss(Terms(d.output, d.history.positive[0], d.history.negative[0]))
    after = loss(Terms(d.output, d.positive_output, d.negative_output))
    assert (after < before).all()


def test_the_full_objective_keeps_nuisance_smaller() -> None:
    assert (split("all").nuisance_output.abs() < split("posneg").nuisance_output.abs()).all()


def test_the_two_streams_have_different_maps() -> None:
    d = split()
    assert d.positive_map.shape == INPUTS
    assert (d.positive_output > d.negative_output).all()
    assert relative(d.positive_map, d.negative_map) > 0.1


@pytest.mark.parametrize("preset", PRESETS)
def test_a_batch_equals_its_images_alone(preset: str) -> None:
    model = nets.ResidualNet().double().eval()
    inputs = torch.randn(INPUTS, dtype=torch.float64)
    explainer = dmbp.DMBP(model, preset=preset, iterations=40)
    together = explainer.explain(inputs, target=[0, 3, 1])
    for k, target in enumerate([0, 3, 1]):
        alone = explainer.explain(inputs[k : k + 1], target=target)
        assert relative(together.attribution[k : k + 1], alone.attribution) <= BATCH
        assert relative(together.positive_output[k], alone.positive_output) <= BATCH


def test_the_same_call_twice_is_bit_identical() -> None:
    model, inputs = nets.ResidualNet().eval(), torch.randn(INPUTS)
    first, second = (dmbp.DMBP(model).explain(inputs, target=1) for _ in range(2))
    assert torch.equal(first.attribution, second.attribution)
    assert torch.equal(first.history.positive, second.history.positive)


def test_a_result_is_printed_in_a_line() -> None:
    printed = repr(split(iterations=1))
    assert printed.startswith("Decomposition(")
    assert "exactness" in printed
    assert len(printed) < 200


def test_an_affine_model_has_nothing_to_mask() -> None:
    net = dmbp.linearize(torch.nn.Linear(4, 2).eval(), torch.randn(1, 4), target=0)
    with pytest.raises(CaptureError, match="no activation to put a mask on"):
        decompose_network(net, Settings())


def test_no_iterations_reads_out_the_initial_masks() -> None:
    d = split(iterations=0)
    assert d.history.positive.shape == (0, 3)
    assert torch.isfinite(d.attribution).all()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"objective": "posnge"}, "no objective 'posnge'; did you mean 'posneg'"),
        ({"combine": "add"}, "no combine 'add'"),
        ({"iterations": -1}, "iterations must be a whole number from 0 to 10,000, not -1"),
        ({"iterations": 10**20}, "iterations must be a whole number from 0 to 10,000, not 1000"),
        ({"iterations": 2.5}, "iterations must be a whole number"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be above 0"),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Settings(**options)
