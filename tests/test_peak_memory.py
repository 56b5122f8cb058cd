"""Peak memory, as `dmbp doctor` measures it."""

from pathlib import Path

import pytest
import torch
from torch import nn

from dmbp.process import CLEAR_REFS, RESIDENT_GROWTH, measure_peak
from dmbp.workflows.examination import examine

MEBIBYTE = 2**20

NEARLY = 0.9
"""Linux counts resident pages in batches, so that a few may be missing."""


@pytest.mark.skipif(not CLEAR_REFS.exists(), reason="only Linux tells a process's peak")
def test_a_tensor_counts_although_it_is_freed_again() -> None:
    peak = measure_peak(lambda: torch.ones(16 * MEBIBYTE), torch.device("cpu"))
    assert peak is not None
    assert NEARLY * 64 * MEBIBYTE <= peak.bytes < 96 * MEBIBYTE
    assert peak.what == RESIDENT_GROWTH


def test_where_nothing_can_be_measured_the_work_is_done_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dmbp.process.CLEAR_REFS", Path("/nowhere/clear_refs"))
    done: list[bool] = []
    assert measure_peak(lambda: done.append(True), torch.device("cpu")) is None
    assert done == [True]


def test_memory_grows_with_the_image() -> None:
    """What masks, their optimiser and activations take; nothing where nothing can be measured."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3))
    ).eval()
    learned = [examine(model, torch.randn(1, 3, side, side)).learning for side in (128, 512)]
    peaks = [None if one is None else one.memory for one in learned]
    if not CLEAR_REFS.exists():
        assert peaks == [None, None]
        return
    small, large = (peak.bytes for peak in peaks if peak is not None)
    assert learned[1] is not None
    assert large > 2 * small
    assert large > 2 * learned[1].mask_bytes  # and the state of their optimiser
