"""Explaining in threads and in processes: the results are those of one thread, to the last bit."""

import copy
import os
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dmbp import DMBP
from dmbp.attribution import METHODS
from dmbp.process import PROCESS_LOCK
from tests import nets

PATIENCE = 120.0
"""Seconds after which a child counts as hanging; all of them take a few."""

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
may_fork = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Maps(Dataset[Tensor]):
    """A dataset whose items are explained where they are read: in a worker."""

    def __init__(self, explainer: DMBP, images: Tensor) -> None:
        self.explainer, self.images = explainer, images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return self.explainer.attribute(self.images[index : index + 1], target=1)[0]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Workers have one thread each, and several add in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def explainer() -> DMBP:
    torch.manual_seed(0)
    return DMBP(nets.ResidualNet().eval(), iterations=2)


@pytest.fixture(scope="module")
def serial(explainer: DMBP, images: Tensor) -> Tensor:
    return torch.stack([Maps(explainer, images)[k] for k in range(len(images))])


@pytest.mark.parametrize("is_captured", [True, False])
def test_a_thread_pool(is_captured: bool, explainer: DMBP, images: Tensor, serial: Tensor) -> None:
    """Whether the model was captured before, or several threads ask for that at once."""
    used = explainer if is_captured else copy.deepcopy(explainer)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(Maps(used, images).__getitem__, range(len(images))))
    assert torch.equal(torch.stack(found), serial)


@pytest.mark.parametrize("method", [pytest.param("fork", marks=[forks, may_fork]), "spawn"])
def test_workers_of_a_data_loader(
    method: str, explainer: DMBP, images: Tensor, serial: Tensor
) -> None:
    loader = DataLoader(
        Maps(explainer, images[:2]),
        batch_size=None,
        num_workers=1,
        multiprocessing_context=method,
        timeout=PATIENCE,
    )
    assert torch.equal(torch.stack(list(loader)), serial[:2])


def explain_in_child(explainer: DMBP, image: Tensor, connection: Any) -> None:
    with pytest.warns(UserWarning, match="this process was forked, and PyTorch's threads do not"):
        found = explainer.attribute(image, target=1)
    connection.send(found.tolist())


@forks
@may_fork
def test_a_forked_process_does_not_wait_for_threads_that_it_lacks(
    explainer: DMBP, images: Tensor, serial: Tensor
) -> None:
    """Without `Fork.use_own_threads` the child hangs in its first parallel operation."""
    context = torch.multiprocessing.get_context("fork")
    torch.set_num_threads(2)
    try:
        large = torch.randn(2, 64, 64, 64)
        torch.nn.functional.conv2d(large, torch.randn(64, 64, 3, 3))  # the parent's threads start
        receiver, sender = context.Pipe()
        child = context.Process(target=explain_in_child, args=(explainer, images[:1], sender))
        child.start()
        try:
            assert receiver.poll(PATIENCE)
            assert torch.equal(torch.tensor(receiver.recv()), serial[:1])
        finally:
            child.join(0 if child.is_alive() else None)
            child.kill()
            child.join()
    finally:
        torch.set_num_threads(1)


@forks
@may_fork
def test_a_fork_waits_for_the_explanation_of_another_thread() -> None:
    started, done = threading.Event(), threading.Event()

    def hold() -> None:
        with PROCESS_LOCK:
            started.set()
            done.wait(0.3)
            finished.append(True)

    finished: list[bool] = []
    other = threading.Thread(target=hold)
    other.start()
    started.wait()
    child = os.fork()
    if child == 0:
        other_thread = ThreadPoolExecutor(1).submit(PROCESS_LOCK.acquire, timeout=5)
        os._exit(0 if finished and other_thread.result() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    other.join()


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_pickled(name: str, images: Tensor) -> None:
    method = METHODS[name](nets.ResidualNet().eval())
    again = pickle.loads(pickle.dumps(method))
    assert type(again) is type(method)
    assert again.forward_func is again.linearizer.model
    if name in ("dmbp_fast", "gradient"):
        assert torch.equal(again.attribute(images, target=1), method.attribute(images, target=1))


def test_decompositions_are_pickled(explainer: DMBP, images: Tensor) -> None:
    d = explainer.explain(images[:2], target=[1, {0: 1.0, 2: -1.0}])
    again = pickle.loads(pickle.dumps(d))
    assert again.targets == d.targets
    assert again.settings == d.settings
    assert torch.equal(again.attribution, d.attribution)
    assert torch.equal(again.worth_for, d.worth_for)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_programs_are_pickled_as_their_files(images: Tensor) -> None:
    torch.manual_seed(0)
    model = nets.ResidualNet().eval()
    batch = ({0: torch.export.Dim("batch")},)
    for program in (
        torch.export.export(model, (images,), dynamic_shapes=batch),
        torch.jit.trace(model, images),  # pyright: ignore[reportUnknownMemberType]
    ):
        method = METHODS["gradient"](program)
        for again in (pickle.loads(pickle.dumps(method)), copy.deepcopy(method)):
            found = again.attribute(images, target=1)
            assert torch.allclose(found, method.attribute(images, target=1), atol=1e-6)
