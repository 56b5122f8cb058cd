"""Convolutions split into partial sums: against whole ones, and inside the GPU engine."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from dmbp.decompose.learn import initial_logits
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import AutogradEngine, plan_for
from dmbp.engine.gpu.engine import GpuEngine
from dmbp.linear import Linearizer
from dmbp.precision import full_precision
from tests.engine.backends import DEVICE
from tests.engine.networks import Block, TwoBranches

pytest.importorskip("triton")

from dmbp.engine.gpu.program import AffineInstruction, GpuInstruction
from dmbp.engine.gpu.triton.backend import TritonBackend
from dmbp.engine.gpu.triton.split_convolution import (
    SplitConvolution,
    SplitConvolutionOperation,
    choose_summands,
)

PLAIN = ([1, 1], [1, 1], [1, 1], 1)


@pytest.mark.parametrize("summands", [1, 4, 8])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [((3, 3), 1, 1), ((3, 5), 2, 1), ((5, 1), 1, 0), ((2, 2), 3, 2)],
)
def test_the_parts_add_up_to_the_convolution(
    summands: int, kernel: tuple[int, int], stride: int, padding: int
) -> None:
    torch.manual_seed(0)
    settings = ([stride, stride], [padding, padding], [1, 1], 1)
    images = torch.randn(3, 128, 7, 6).half().to(DEVICE)
    weight = torch.randn(64, 128, *kernel).half().to(DEVICE)
    in_memory = images.contiguous(memory_format=torch.channels_last)
    found = SplitConvolution(weight, settings, summands)(in_memory)
    assert len(found.summands) == summands
    with full_precision():
        expected = torch.conv2d(images.float(), weight.float(), None, *settings)
    assert torch.allclose(found.total(torch.float32), expected, atol=1e-2, rtol=1e-4)


@pytest.mark.parametrize(
    ("shape", "settings", "rows"),
    [
        ((64, 64, 1, 1), ([1, 1], [0, 0], [1, 1], 1), 1),
        ((64, 48, 3, 3), PLAIN, 1),
        ((48, 64, 3, 3), PLAIN, 1),
        ((64, 64, 3, 3), ([1, 2], [1, 1], [1, 1], 1), 1),
        ((64, 64, 3, 3), ([1, 1], [1, 0], [1, 1], 1), 1),
        ((64, 64, 3, 3), ([1, 1], [2, 2], [2, 2], 1), 1),
        ((64, 64, 3, 3), ([1, 1], [1, 1], [1, 1], 2), 1),
        ((64, 64, 3, 3), PLAIN, 10000),
    ],
    ids=["1x1", "read", "channels", "stride", "padding", "dilation", "groups", "many"],
)
def test_convolutions_that_are_not_split(
    shape: tuple[int, ...], settings: tuple[list[int], list[int], list[int], int], rows: int
) -> None:
    device = torch.device(DEVICE)
    assert choose_summands(shape, settings, rows=rows, size=(8, 8), device=device) == 1


def test_fewer_tiles_are_split_into_more_parts() -> None:
    def parts(rows: int) -> int:
        shape, device = (64, 64, 3, 3), torch.device("cpu")
        return choose_summands(shape, PLAIN, rows=rows, size=(8, 8), device=device)

    # There are as many tiles as rows, and 132 processors.
    assert [parts(rows) for rows in (1, 33, 34, 66, 67)] == [8, 8, 4, 4, 1]


class CountingBackend(TritonBackend):
    """Counts the convolutions that are split."""

    split_count = 0

    def split_convolutions(
        self, program: Sequence[GpuInstruction], *arguments: Any, **settings: Any
    ) -> list[GpuInstruction]:
        found = super().split_convolutions(program, *arguments, **settings)
        affine = [part for part in found if isinstance(part, AffineInstruction)]
        self.split_count = sum(isinstance(p.operation, SplitConvolutionOperation) for p in affine)
        return found


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize(
    ("model", "objective", "count"), [(Block, "all", 3), (TwoBranches, "posneg", 2)]
)
def test_the_engine_learns_the_same_masks(
    model: type[nn.Module], objective: str, count: int
) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(2, 3, 6, 6).to(DEVICE)
    backend = CountingBackend()
    with full_precision():
        net = Linearizer(model().to(DEVICE).eval()).linearize(inputs, target=[1, 2])
        plan = plan_for(net)
        logits = initial_logits(plan)
        settings = {"loss": OBJECTIVES[objective], "learning_rate": 0.05}
        reference = AutogradEngine(plan, logits, **settings)
        engine = GpuEngine(plan, logits, **settings, dtype=torch.float16, backend=backend)
        assert backend.split_count == count
        for _ in range(3):
            expected, found = reference.step(), engine.step()
            assert torch.allclose(found.positive, expected.positive, rtol=2e-3, atol=1e-3)
    for name, before in logits.items():
        moved = [one.logits[name].double() - before for one in (reference, engine)]
        is_open = moved[0] != 0
        pair = torch.stack([part[is_open] for part in moved])
        assert torch.corrcoef(pair)[0, 1] > 0.999, name
