"""Threads explain one at a time, each as if it were alone."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dmbp import DMBP
from dmbp.precision import full_precision, reduced_precision
from dmbp.process import defer_interrupts
from tests import nets
from tests.conftest import ROOT


def tf32() -> tuple[bool, bool]:
    return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32


@pytest.mark.filterwarnings("ignore:the model is in training mode")
def test_threads_with_one_explainer_and_with_their_own() -> None:
    """Each thread captures the model, changes its mode and torch's switches, and restores both."""
    model = nets.ResidualNet().train()
    images = torch.randn(4, 1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    expected = [DMBP(model, iterations=3).attribute(image, target=1) for image in images]
    shared, before = DMBP(model, iterations=3), tf32()

    def explained(k: int) -> list[torch.Tensor]:
        own = DMBP(model, iterations=3)
        return [explainer.attribute(images[k], target=1) for explainer in (shared, own, own)]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(explained, [0, 1, 2, 3] * 3))
    for k, maps in enumerate(found):
        for one in maps:
            torch.testing.assert_close(one, expected[k % 4])
    assert tf32() == before
    assert all(module.training for module in model.modules())


def test_switches_are_one_threads_at_a_time() -> None:
    before, inside = tf32(), threading.Event()

    def rough() -> tuple[bool, bool]:
        inside.set()
        with reduced_precision("tf32", "cpu"):
            return tf32()

    with ThreadPoolExecutor(1) as threads:
        with full_precision():
            other = threads.submit(rough)
            assert inside.wait(10)
            assert not other.done()
            assert tf32() == (False, False)
        assert other.result(timeout=10) == (True, True)
    assert tf32() == before


def test_an_interrupt_waits_for_what_is_deferred() -> None:
    steps: list[str] = []

    def interrupted() -> None:
        with defer_interrupts():
            signal.raise_signal(signal.SIGINT)
            steps.append("inside")
        steps.append("after")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert steps == ["inside"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with ThreadPoolExecutor(1) as threads:  # which interrupts do not reach
        threads.submit(lambda: defer_interrupts().__enter__()).result()


INTERRUPTED = """
import os, signal, sys
import torch
from dmbp import DMBP
from tests import nets

class InterruptingFinder:
    def find_spec(self, name, path=None, target=None):
        if name == "sympy.printing":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, InterruptingFinder())
model, images = nets.ResidualNet().eval(), torch.randn(1, 3, 16, 16)
try:
    DMBP(model, iterations=2).attribute(images, target=1)
except KeyboardInterrupt:
    print("interrupted")
sys.meta_path.pop(0)
print(tuple(DMBP(model, iterations=2).attribute(images, target=1).shape))
"""


def test_an_interrupt_in_the_first_explanation_does_not_poison_later_ones() -> None:
    """It comes while PyTorch imports its exporter, in a process of its own."""
    command = [sys.executable, "-c", INTERRUPTED]
    alone = {**os.environ, "DMBP_CACHE": "off"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=alone)
    assert done.stdout == "interrupted\n(1, 3, 16, 16)\n", done.stderr
