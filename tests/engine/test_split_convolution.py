"""Convolutions of few pixels in parts: against whole ones, and inside the GPU engine."""

import pytest
import torch
from torch import nn

from dmbp.decompose.learn import initial_logits
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import AutogradEngine, plan_for
from dmbp.engine.gpu.engine import GpuEngine
from dmbp.linear import Linearizer
from dmbp.precision import full_precision
from tests.engine.networks import Block, TwoBranches

pytest.importorskip("triton")

from dmbp.engine.gpu.program import AffineInstruction
from dmbp.engine.gpu.triton.backend import TritonBackend
from dmbp.engine.gpu.triton.split_convolution import (
    SplitConvolution,
    SplitConvolutionOperation,
    choose_summands,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

PLAIN = ([1, 1], [1, 1], [1, 1], 1)


@pytest.mark.parametrize("summands", [1, 4, 8])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [((3, 3), 1, 1), ((3, 5), 2, 1), ((5, 1), 1, 0), ((2, 2), 3, 2)],
)
def test_sum_of_parts(summands: int, kernel: tuple[int, int], stride: int, padding: int) -> None:
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
def test_left_whole(
    shape: tuple[int, ...], settings: tuple[list[int], list[int], list[int], int], rows: int
) -> None:
    device = torch.device(DEVICE)
    assert choose_summands(shape, settings, rows=rows, size=(8, 8), device=device) == 1


def test_fewer_tiles_more_parts() -> None:
    def parts(rows: int) -> int:
        shape, device = (64, 64, 3, 3), torch.device("cpu")
        return choose_summands(shape, PLAIN, rows=rows, size=(8, 8), device=device)

    # As many tiles as rows, on 132 processors.
    assert [parts(rows) for rows in (1, 33, 34, 66, 67)] == [8, 8, 4, 4, 1]


@pytest.mark.parametrize("objective", ["all", "posneg"])
@pytest.mark.parametrize(("model", "count"), [(Block, 3), (TwoBranches, 2)])
def test_engine_learns_the_same_masks(
    model: type[nn.Module], count: int, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dmbp.engine.gpu.triton.site.TILE_ELEMENTS", 1 << 12)
    torch.manual_seed(0)
    inputs = torch.randn(2, 3, 6, 6).to(DEVICE)
    with full_precision():
        net = Linearizer(model().to(DEVICE).eval()).linearize(inputs, target=[1, 2])
        plan = plan_for(net)
        logits = initial_logits(plan)
        settings = {"loss": OBJECTIVES[objective], "learning_rate": 0.05}
        reference = AutogradEngine(plan, logits, **settings)
        engine = GpuEngine(plan, logits, **settings, dtype=torch.float16, backend=TritonBackend())
        program = [part for part in engine._program if isinstance(part, AffineInstruction)]
        assert (
            sum(isinstance(part.operation, SplitConvolutionOperation) for part in program) == count
        )
        for _ in range(3):
            expected, found = reference.step(), engine.step()
            assert torch.allclose(found.positive, expected.positive, rtol=2e-3, atol=1e-3)
    for name, before in logits.items():
        moved = [one.logits[name].double() - before for one in (reference, engine)]
        is_open = moved[0] != 0
        pair = torch.stack([part[is_open] for part in moved])
        assert torch.corrcoef(pair)[0, 1] > 0.999, name
