"""Batches that do not fit into memory are halved, with a warning, and give the same result."""

from collections.abc import Callable, Iterable, Iterator

import numpy
import pytest
import torch
from torch import Tensor, nn

from dmbp.attribution import METHODS, Method
from dmbp.attribution.base import Question, rows_that_fit, run_with_oom_retry
from dmbp.attribution.dmbp import DMBP
from dmbp.errors import InputError
from tests import nets
from tests.tolerance import relative

IMAGES = torch.randn(7, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def small_memory(monkeypatch: pytest.MonkeyPatch, fits: int) -> list[int]:
    """Make every method run out of memory above `fits` rows; return the rows tried, in order."""
    tried: list[int] = []

    def with_little_memory(
        questions: Iterable[Question], answer: Callable[[Question], object]
    ) -> Iterator[object]:
        def limited(question: Question) -> object:
            tried.append(len(question.rows))
            if len(question.rows) > fits:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return answer(question)

        return run_with_oom_retry(questions, limited)

    for module in ("base", "dmbp"):
        monkeypatch.setattr(f"dmbp.attribution.{module}.run_with_oom_retry", with_little_memory)
    return tried


@pytest.mark.parametrize("name", ["dmbp", "gradient", "smoothgrad"])
def test_half_is_tried_and_gives_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = METHODS[name](nets.ResidualNet().double().eval())
    expected = method.attribute(IMAGES, target=1, internal_batch_size=7)
    tried = small_memory(monkeypatch, fits=2)
    with pytest.warns(UserWarning, match="do not fit into memory; continuing with") as notes:
        found = method.attribute(IMAGES, target=1, internal_batch_size=7)
    assert relative(found, expected) <= 1e-8
    assert tried == [7, 3, 1, 1, 1, 1, 1, 1, 1]  # it remembers what fits
    assert len(notes) == 2


def test_a_whole_decomposition_too(monkeypatch: pytest.MonkeyPatch) -> None:
    explainer = DMBP(nets.ResidualNet().double().eval(), iterations=3)
    expected = explainer.explain(IMAGES, target=1, internal_batch_size=7)
    small_memory(monkeypatch, fits=4)
    with pytest.warns(UserWarning, match="7 images at once do not fit"):
        found = explainer.explain(IMAGES, target=1, internal_batch_size=7)
    assert found.image == expected.image
    assert relative(found.attribution, expected.attribution) <= 1e-8


def test_only_what_was_run_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    explainer = DMBP(nets.ResidualNet().double().eval(), iterations=1)
    tried = small_memory(monkeypatch, fits=4)
    with pytest.warns(
        UserWarning, match="7 images at once do not fit into memory; continuing with 3"
    ):
        explainer.explain(IMAGES, target=1, internal_batch_size=10**12)
    assert tried == [7, 3, 3, 1]


def test_numpy_numbers_count() -> None:
    method = METHODS["gradient"](nets.ResidualNet().double().eval())
    assert (
        method.attribute(IMAGES, target=1, internal_batch_size=numpy.int64(2)).shape == IMAGES.shape
    )


def test_not_even_one(monkeypatch: pytest.MonkeyPatch) -> None:
    method = METHODS["gradient"](nets.ResidualNet().double().eval())
    small_memory(monkeypatch, fits=0)
    with pytest.raises(InputError, match="not even a single image fits into memory"):
        method.attribute(IMAGES[:1], target=1, internal_batch_size=1)


def test_other_errors_pass() -> None:
    class Broken(Method):
        def answer(self, question: Question) -> Tensor:
            raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        Broken(nets.ResidualNet().double().eval()).attribute(IMAGES, target=1)


def test_an_estimate_from_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (900, 1000))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda _: 300)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda _: 200)
    device = torch.device("cuda")
    assert rows_that_fit(100, device, max_rows=64) == 8  # 0.8 of 900 free and 100 kept
    assert rows_that_fit(100, device, max_rows=5) == 5
    assert rows_that_fit(10_000, device, max_rows=64) == 1


def test_masked_elements() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(784, 2)).eval()
    method = DMBP(model)
    assert method.linearizer.count_mask_elements(torch.randn(1, 3, 16, 16)) == 4 * 14 * 14


@pytest.mark.parametrize("size", [0, -1, 1.5, "many", True])
def test_sizes_that_are_refused(size: object) -> None:
    method = METHODS["gradient"](nets.ResidualNet().double().eval())
    with pytest.raises(InputError, match="internal_batch_size must be 1 or more, or 'auto', not"):
        method.attribute(IMAGES, target=1, internal_batch_size=size)
