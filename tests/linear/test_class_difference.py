"""Targets of one class rather than others, against weights worked out by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import dmbp
from dmbp.errors import TargetError
from tests import nets


@pytest.mark.parametrize(
    ("others", "weights"),
    [
        (1, {3: 1.0, 1: -1.0}),
        ([1], {3: 1.0, 1: -1.0}),
        ((1, 0), {3: 1.0, 1: -0.5, 0: -0.5}),
        ([1, 0, 1], {3: 1.0, 1: -0.5, 0: -0.5}),
        (torch.tensor(1), {3: 1.0, 1: -1.0}),
        (torch.tensor([1, 0]), {3: 1.0, 1: -0.5, 0: -0.5}),
    ],
)
def test_a_class_minus_the_mean_of_others(others: Any, weights: dict[int, float]) -> None:
    assert dmbp.rather_than(3, others) == weights


LOGITS = torch.tensor([math.log(6.0), math.log(9.0), math.log(3.0), math.log(1.0), math.log(2.0)])
"""The softmax is 6, 9, 3, 1 and 2 parts of 21."""


@pytest.mark.parametrize(
    ("target", "weights"),
    [
        (0, {0: 1.0, 1: -9 / 14, 2: -3 / 14, 4: -2 / 14}),
        (1, {1: 1.0, 0: -6 / 11, 2: -3 / 11, 4: -2 / 11}),
        (3, {3: 1.0, 1: -9 / 18, 0: -6 / 18, 2: -3 / 18}),
    ],
)
@pytest.mark.parametrize("shape", [(5,), (1, 5)])
def test_rivals_are_weighted_by_their_probabilities(
    target: int, weights: dict[int, float], shape: tuple[int, ...]
) -> None:
    found = dmbp.rather_than(target, "rivals", outputs=LOGITS.view(shape))
    assert list(found) == list(weights)  # the strongest first
    assert found == pytest.approx(weights, rel=1e-6)


def test_rivals_by_another_activation() -> None:
    """The sigmoid of log k is k / (k + 1)."""
    found = dmbp.rather_than(0, "rivals", outputs=LOGITS, activation="sigmoid")
    total = 9 / 10 + 3 / 4 + 2 / 3
    expected = {0: 1.0, 1: -0.9 / total, 2: -0.75 / total, 4: -2 / 3 / total}
    assert found == pytest.approx(expected, rel=1e-6)
    probabilities = torch.tensor([0.5, 0.3, 0.1])
    found = dmbp.rather_than(0, "rivals", outputs=probabilities, activation="none")
    assert found == pytest.approx({0: 1.0, 1: -0.75, 2: -0.25})


@pytest.mark.parametrize(
    ("outputs", "weights"),
    [
        ([5000.0, 0.0, -1.0, -2.0, 1.0], {0: 1.0, 4: -1 / 3, 1: -1 / 3, 2: -1 / 3}),
        ([2.0, 1.0], {0: 1.0, 1: -1.0}),
    ],
)
def test_rivals_without_probability_or_too_few(
    outputs: list[float], weights: dict[int, float]
) -> None:
    """If every rival's probability is rounded to zero, the strongest outputs count alike."""
    assert dmbp.rather_than(0, "rivals", outputs=torch.tensor(outputs)) == pytest.approx(weights)


@pytest.mark.parametrize(
    ("target", "others", "outputs", "message"),
    [
        (2, 2, None, "class 2 cannot be explained rather than itself"),
        (2, [1, 2], None, "class 2 cannot be explained rather than itself"),
        (2, [], None, "the list of other classes is empty"),
        (2, "cat", None, "other classes are numbers or \"rivals\", not 'cat'"),
        (2, ["cat"], None, "a class is a whole number, not 'cat'"),
        (1.5, 1, None, "a class is a whole number, not 1.5"),
        (2, True, None, "a class is a whole number, not True"),
        (2, "rivals", None, "depends on the image: give the model's outputs"),
        (2, "rivals", torch.zeros(2, 5), "of one image, .* not of shape \\(2, 5\\)"),
        (2, "rivals", torch.tensor(1.0), "of one image, .* not of shape \\(\\)"),
        (5, "rivals", torch.zeros(5), "class 5 is out of range: the model has classes 0 to 4"),
        (0, "rivals", torch.zeros(1), "a single output, so there is no other class"),
        (0, "rivals", torch.tensor([0.0, math.nan]), "NaN or infinity"),
    ],
)
def test_questions_that_cannot_be_asked(
    target: Any, others: Any, outputs: Tensor | None, message: str
) -> None:
    with pytest.raises(TargetError, match=message):
        dmbp.rather_than(target, others, outputs=outputs)


def test_the_score_is_the_difference_of_outputs() -> None:
    model, inputs = nets.ResidualNet().double().eval(), torch.randn(2, 3, 8, 8).double()
    outputs = model(inputs)
    net = dmbp.linearize(model, inputs, target=dmbp.rather_than(1, [0, 2]))
    torch.testing.assert_close(net.value(), outputs[:, 1] - (outputs[:, 0] + outputs[:, 2]) / 2)
    rivals = [dmbp.rather_than(1, "rivals", outputs=row) for row in outputs]
    first, second = dmbp.linearize(model, inputs, target=rivals).value()
    for score, row in ((first, outputs[0]), (second, outputs[1])):
        parts = row.softmax(0) * (torch.arange(len(row)) != 1)
        strongest = parts.topk(3)
        mean = (strongest.values * row[strongest.indices]).sum() / strongest.values.sum()
        torch.testing.assert_close(score, row[1] - mean)
