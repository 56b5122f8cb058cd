"""Threads that explain: exporting a model is done alone, all else side by side."""

import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late

import pytest
import torch

from dmbp import DMBP
from dmbp.linear.one_exporter import SharedOrAlone
from tests import nets


def test_threads_with_one_explainer_and_with_their_own() -> None:
    """Every one of them captures, and another runs the model meanwhile."""
    model = nets.ResidualNet().eval()
    images = torch.randn(4, 1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    expected = [DMBP(model, iterations=3).attribute(image, target=1) for image in images]
    shared = DMBP(model, iterations=3)

    def explained(k: int) -> list[torch.Tensor]:
        own = DMBP(model, iterations=3)
        return [explainer.attribute(images[k], target=1) for explainer in (shared, own, own)]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(explained, [0, 1, 2, 3] * 3))
    for k, maps in enumerate(found):
        for one in maps:
            torch.testing.assert_close(one, expected[k % 4])


def test_who_runs_lets_others_run() -> None:
    door = SharedOrAlone()
    both = threading.Barrier(2, timeout=10)

    def run() -> None:
        with door.shared():
            both.wait()

    with ThreadPoolExecutor(2) as threads:
        for future in [threads.submit(run) for _ in range(2)]:
            future.result()


def test_alone_waits_for_all_and_is_next() -> None:
    door, order = SharedOrAlone(), list[str]()

    def alone() -> None:
        with door.alone():
            order.append("alone")

    def after() -> None:
        with door.shared():
            order.append("after")

    with ThreadPoolExecutor(2) as threads:
        with door.shared():
            first = threads.submit(alone)
            with pytest.raises(Late):
                first.result(timeout=0.2)
            second = threads.submit(after)
            with door.shared():  # who is inside may go on
                pass
            with pytest.raises(Late):
                second.result(timeout=0.2)
        first.result(timeout=10)
        second.result(timeout=10)
    assert order == ["alone", "after"]


def test_a_run_may_begin_inside_an_export() -> None:
    door = SharedOrAlone()
    with door.alone(), door.shared():
        pass
    with door.alone():  # and it is free again
        pass
