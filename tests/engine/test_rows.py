"""Predicted row layouts, against steps that run on tensors filled with their row numbers."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dmbp.engine.plan.rows import result_layout
from dmbp.engine.plan.streams import ROWS_FIRST, Example, RowLayout
from dmbp.linear.steps import LinearStep, Slot

aten: Any = torch.ops.aten
Draw = Callable[[Tensor], tuple[Any, list[Any]]]


def step(operation: Any, arguments: list[Any], shape: torch.Size) -> LinearStep:
    return LinearStep(
        name="",
        operation=str(operation),
        kind="affine",
        module="",
        function=operation,
        arguments=[Slot(0), *arguments],
        keywords={},
        output=1,
        shape=tuple(shape),
        site=None,
    )


def reshaped(value: Tensor) -> tuple[Any, list[Any]]:
    """Split a dimension or flatten neighbours."""
    sizes = list(value.shape)
    at = random.randrange(len(sizes))
    split = [k for k in range(2, sizes[at]) if sizes[at] % k == 0]
    if split and random.random() < 0.6:
        k = random.choice(split)
        return aten.reshape.default, [[*sizes[:at], k, sizes[at] // k, *sizes[at + 1 :]]]
    end = random.randrange(at, len(sizes))
    return aten.flatten.using_ints, [at, end]


def permuted(value: Tensor) -> tuple[Any, list[Any]]:
    return aten.permute.default, [random.sample(range(value.dim()), value.dim())]


def transposed(value: Tensor) -> tuple[Any, list[Any]]:
    pair = [random.randrange(-value.dim(), value.dim()) for _ in range(2)]
    return aten.transpose.int, pair


def unsqueezed(value: Tensor) -> tuple[Any, list[Any]]:
    return aten.unsqueeze.default, [random.randrange(-value.dim() - 1, value.dim() + 1)]


def selected(value: Tensor) -> tuple[Any, list[Any]]:
    return aten.select.int, [random.randrange(-value.dim(), value.dim()), 0]


def averaged(value: Tensor) -> tuple[Any, list[Any]]:
    count = random.randrange(1, value.dim() + 1)
    return aten.mean.dim, [random.sample(range(value.dim()), count), random.random() < 0.5]


def rolled(value: Tensor) -> tuple[Any, list[Any]]:
    return aten.roll.default, [[1], [random.randrange(value.dim())]]


def sliced(value: Tensor) -> tuple[Any, list[Any]]:
    return aten.slice.Tensor, [random.randrange(value.dim()), 0, random.randrange(1, 9)]


def expanded(value: Tensor) -> tuple[Any, list[Any]]:
    return aten.expand.default, [[3, *value.shape]]


DRAWS: list[Draw] = [
    *(reshaped, reshaped, reshaped, permuted, transposed),
    *(unsqueezed, selected, averaged, rolled, sliced, expanded),
]


def numbers(rows: int) -> Tensor:
    """Return a tensor in which every element is the number of its row."""
    shape = (rows, 6, rows, 4)
    return torch.arange(rows, dtype=torch.float64).view(-1, 1, 1, 1).expand(shape)


def rows_lie_in(layout: RowLayout, value: Tensor, rows: int) -> bool:
    owner = torch.arange(rows, dtype=value.dtype).view(-1, 1)
    return torch.equal(layout.by_row(value, rows), owner.expand(rows, value.numel() // rows))


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_random_steps_move_rows_as_predicted(rows: int) -> None:
    """Chains of random steps until rows are lost; most chains take several steps."""
    random.seed(rows)
    kept = 0
    for _ in range(300):
        value, layout = numbers(rows), ROWS_FIRST
        for _ in range(8):
            operation, arguments = random.choice(DRAWS)(value)
            result = operation(value, *arguments)
            found = result_layout(
                step(operation, arguments, result.shape), [Example(value, True, layout)], rows
            )
            if found is None:
                break
            value, layout = result, found
            kept += 1
            assert rows_lie_in(layout, value, rows), (operation, arguments, value.shape, layout)
    assert kept > 600


@pytest.mark.parametrize(
    "layout", [ROWS_FIRST, RowLayout(1), RowLayout(0, 2, 1), RowLayout(1, 2, 3)]
)
def test_by_row_is_inverted_by_restore(layout: RowLayout) -> None:
    shape = [5, 4, 7]
    shape[layout.dimension] = layout.outer * 2 * layout.inner
    value = torch.randn(shape)
    by_row = layout.by_row(value, 2)
    assert torch.equal(layout.restore(by_row, shape), value)
    seeds = torch.tensor([2.0, -1.0])
    spread = layout.spread(seeds, 3) * value
    assert torch.equal(layout.by_row(spread, 2), by_row * seeds[:, None])


def test_rows_spread_over_two_dimensions_are_lost() -> None:
    given = [Example(torch.zeros(4, 6), True, ROWS_FIRST)]
    assert (
        result_layout(step(aten.reshape.default, [[2, 12]], torch.Size([2, 12])), given, 4) is None
    )
    assert result_layout(
        step(aten.reshape.default, [[8, 3]], torch.Size([8, 3])), given, 4
    ) == RowLayout(0, 1, 2)


def test_values_owner_rows_differ_are_lost() -> None:
    given = [
        Example(torch.zeros(3, 3), True, ROWS_FIRST),
        Example(torch.zeros(3, 3), True, RowLayout(1)),
    ]
    both = step(aten.add.Tensor, [Slot(2)], torch.Size([3, 3]))
    assert result_layout(both, given, 3) is None
