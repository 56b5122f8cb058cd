"""Branches of a network on several CUDA streams: what waits for what, and equal results."""

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from dmbp.decompose.learn import initial_logits
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import plan_for
from dmbp.engine.base import Logits, Terms
from dmbp.engine.gpu import engine as gpu
from dmbp.engine.gpu.engine import GpuEngine
from dmbp.engine.gpu.lanes import LaneSlot, assign_lanes
from dmbp.linear import Linearizer
from dmbp.precision import deterministic_kernels, full_precision
from tests.engine.backends import backend


def waited_for(found: Sequence[LaneSlot]) -> list[set[int]]:
    """Return what has finished when a slot starts: on its lane, by events, and transitively."""
    last: dict[int, int] = {}
    all_before: list[set[int]] = []
    for place, slot in enumerate(found):
        direct = {*slot.waits_for, *([last[slot.lane]] if slot.lane in last else [])}
        all_before.append(direct.union(*(all_before[other] for other in direct)))
        last[slot.lane] = place
    return all_before


def test_a_chain_has_one_lane() -> None:
    assert assign_lanes([[], [0], [1], [2]]) == [LaneSlot(0)] * 4


def test_a_branch_gets_a_lane_of_its_own() -> None:
    #  0 → 1 → 2 → 4 → 5, and 0 → 3 → 4
    assert assign_lanes([[], [0], [1], [0], [2, 3], [4]]) == [
        LaneSlot(0), LaneSlot(0), LaneSlot(0), LaneSlot(1, (0,)), LaneSlot(0, (3,)), LaneSlot(0),
    ]  # fmt: skip


def test_lanes_are_reused() -> None:
    block = [[0], [0], [1, 2]]
    needs: list[list[int]] = [[]]
    for first in range(0, 12, 3):
        needs += [[place + first for place in needed] for needed in block]
    assert {slot.lane for slot in assign_lanes(needs)} == {0, 1}


def test_branches_queue_up_if_no_lane_is_left() -> None:
    found = assign_lanes([[], [0], [0], [0], [0], [1, 2, 3, 4]], lanes=2)
    assert {slot.lane for slot in found} == {0, 1}
    assert waited_for(found)[5] == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_nothing_starts_before_what_it_needs(lanes: int) -> None:
    rng = random.Random(0)
    for _ in range(30):
        needs = [rng.sample(range(place), min(place, rng.randint(0, 3))) for place in range(40)]
        found = assign_lanes(needs, lanes=lanes)
        assert max(slot.lane for slot in found) < lanes
        for needed, before in zip(needs, waited_for(found), strict=True):
            assert set(needed) <= before


def two(middle: int, kernel: int) -> nn.Module:
    """Return two convolutions with a ReLU between them."""
    return nn.Sequential(
        nn.Conv2d(64, middle, 1), nn.ReLU(), nn.Conv2d(middle, 64, kernel, padding=kernel // 2)
    )


class Branching(nn.Module):
    """Five branches: two are added, and their sum is concatenated with the others.

    Their convolutions take different times, so that some run on when others have finished.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, padding=1)
        self.branches = nn.ModuleList(two(32 * k, 2 * k + 1) for k in range(1, 5))
        self.short = nn.Conv2d(64, 64, 1)
        self.head = nn.Conv2d(256, 64, 3, stride=2, padding=1)
        self.last = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        first, *others = (branch(x) for branch in self.branches)
        x = torch.cat([torch.relu(y) for y in (first + self.short(x), *others)], 1)
        return self.last(torch.relu(self.head(x)).mean((2, 3)))


def engine_of(model: nn.Module, inputs: Tensor, dtype: torch.dtype = torch.float32) -> GpuEngine:
    with full_precision(), deterministic_kernels():
        net = Linearizer(model).linearize(inputs, target=1)
        plan = plan_for(net)
        return GpuEngine(
            plan,
            initial_logits(plan),
            loss=OBJECTIVES["all"],
            learning_rate=0.05,
            dtype=dtype,
            backend=backend(triton=inputs.is_cuda),
        )


def lanes_of(engine: GpuEngine) -> int:
    return engine._iteration.lanes  # pyright: ignore[reportPrivateUsage]


def test_long_branches_get_lanes() -> None:
    assert lanes_of(engine_of(Branching().eval(), torch.randn(1, 3, 8, 8))) > 2
    chain = nn.Sequential(two(8, 3), nn.Flatten(), nn.Linear(64, 5)).eval()
    assert lanes_of(engine_of(chain, torch.randn(1, 64, 1, 1))) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("size", [28, 112])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_lanes_do_not_change_a_bit(
    size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = Branching().cuda().eval()
    inputs = torch.randn(2, 3, size, size, device="cuda")

    def learned() -> tuple[Logits, Terms]:
        engine = engine_of(model, inputs, dtype)
        with full_precision(), deterministic_kernels():
            terms = engine.learn(30)
        assert engine.is_captured
        assert lanes_of(engine) > 2
        return engine.logits, terms

    logits, terms = learned()
    monkeypatch.setattr(gpu, "MAX_ROWS_FOR_LANES", 0)
    expected, expected_terms = learned()
    assert torch.equal(terms.positive, expected_terms.positive)
    assert torch.equal(terms.negative, expected_terms.negative)
    assert all(torch.equal(logits[name], expected[name]) for name in expected)
