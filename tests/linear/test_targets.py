"""Every form of a target, and every target that is refused."""

import pytest
import torch

import dmbp
from dmbp.errors import TargetError
from dmbp.linear.model.runner import ModelRunner
from dmbp.linear.targets import Target, read_target, rows_without_forward
from tests import nets

OUTPUTS = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 1.0]])


@pytest.mark.parametrize(
    ("target", "image", "labels"),
    [
        (None, (0, 1), (1, 0)),
        (2, (0, 1), (2, 2)),
        ([2, 0], (0, 1), (2, 0)),
        ((2, 0), (0, 1), (2, 0)),
        (torch.tensor([2, 0]), (0, 1), (2, 0)),
        (torch.tensor(2), (0, 1), (2, 2)),
        ([[2, 0], [1]], (0, 0, 1), (2, 0, 1)),
        ({0: 1.0, 2: -1.0}, (0, 1), ({0: 1.0, 2: -1.0},) * 2),
        ([{0: 0.5}, 1], (0, 1), ({0: 0.5}, 1)),
    ],
)
def test_targets(target: Target, image: tuple[int, ...], labels: tuple[object, ...]) -> None:
    rows = read_target(target, outputs=OUTPUTS)
    assert (rows.image, rows.labels) == (image, labels)


@pytest.mark.parametrize("target", [2, [2, 0], torch.tensor([1, 1]), {0: 1.0}, [[2, 0], [1]]])
def test_rows_without_forward(target: Target) -> None:
    assert rows_without_forward(target, images=2, shape=(3,)) == read_target(
        target, outputs=OUTPUTS
    )


@pytest.mark.parametrize("target", [None, torch.max, [0, torch.max], 3, [1], "cat"])
def test_rows_that_need_a_forward_pass(target: Target) -> None:
    assert rows_without_forward(target, images=2, shape=(3,)) is None


def test_a_runner_knows_the_classes_of_inputs_it_has_run() -> None:
    inputs = torch.randn(2, 3, 8, 8)
    runner = ModelRunner(nets.ResidualNet().eval())
    assert runner.target_rows_without_forward(inputs, 1) is None
    _, _, rows = runner.target_rows(inputs, 1)
    found = runner.target_rows_without_forward(inputs, 1)
    assert found is not None
    assert found[1] == rows
    assert runner.target_rows_without_forward(inputs[..., 1:], 1) is None
    assert runner.target_rows_without_forward(inputs[:1], [1, 2]) is None


def test_several_targets_of_one_image() -> None:
    rows = read_target([2, 0, 1], outputs=OUTPUTS[:1])
    assert (rows.image, rows.labels) == ((0, 0, 0), (2, 0, 1))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (3, "class 3 is out of range: the model has classes 0 to 2"),
        (-1, "class -1 is out of range"),
        ([0, 1, 2], "3 targets were given for 2 images"),
        ([[0, 1]], "1 targets were given for 2 images"),
        ("cat", "not 'cat'"),
        (1.5, "not 1.5"),
        (True, "not True"),
        ({}, "a weight other than 0"),
        ({0: 0.0}, "a weight other than 0"),
        ({0: float("nan")}, "finite numbers"),
        ({0: "a"}, "finite numbers"),
        ([], "list of targets is empty"),
        ([[], []], "list of targets is empty"),
        ({7: 1.0}, "class 7 is out of range"),
        (torch.tensor([0.5, 1.0]), "not torch.float32 values"),
    ],
)
def test_invalid_targets_are_refused(target: Target, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        read_target(target, outputs=OUTPUTS)


def test_a_weighted_target_is_that_sum_of_outputs() -> None:
    model, inputs = nets.ResidualNet().double().eval(), torch.randn(2, 3, 8, 8).double()
    net = dmbp.linearize(model, inputs, target={1: 1.0, 3: -0.5})
    outputs = model(inputs)
    torch.testing.assert_close(net.value(), outputs[:, 1] - 0.5 * outputs[:, 3])
