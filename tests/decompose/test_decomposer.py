"""Numbers beyond float16's range: noticed at the end, and learned again in bfloat16."""

import importlib
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dmbp
from dmbp.decompose.settings import Precision
from dmbp.engine.gpu.engine import GpuEngine
from dmbp.engine.gpu.torch_backend import TorchBackend
from dmbp.engine.select import DTYPES

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

NOTE = "beyond float16's range"


@pytest.fixture(autouse=True)
def _gpu_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine of GPUs on a CPU too, in plain operations."""

    def engine_for(*arguments: Any, precision: str, **settings: Any) -> GpuEngine:
        dtype = DTYPES[precision]
        return GpuEngine(*arguments, **settings, dtype=dtype, backend=TorchBackend())

    if DEVICE == "cpu":
        module = importlib.import_module("dmbp.decompose.learn")
        monkeypatch.setattr(module, "engine_for", engine_for)


class Sized(nn.Module):
    """Two layers whose activations are `size` times as large in between."""

    def __init__(self, size: float, *, through: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3)
        self.second = nn.Conv2d(8, 8, 3)
        self.last = nn.Linear(8, 4)
        self._size, self._through = size, through

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x)) * self._size
        x = torch.relu(self.second(x)) / self._size
        x = torch.relu(x * self._through) / self._through
        return self.last(x.mean((2, 3)))


def explained(
    model: nn.Module, images: Tensor, precision: Precision = "float16", iterations: int = 5
) -> dmbp.Decomposition:
    explainer = dmbp.DMBP(model.to(DEVICE).eval(), iterations=iterations, precision=precision)
    return explainer.explain(images, target=1)


def images() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 3, 9, 9).to(DEVICE)


@pytest.mark.parametrize(
    "model", [Sized(1e6), Sized(1.0, through=1e-14)], ids=["activations", "gradients"]
)
def test_what_is_out_of_range_is_learned_in_bfloat16(model: nn.Module) -> None:
    with pytest.warns(UserWarning, match=NOTE):
        found = explained(model, images())
    expected = explained(model, images(), precision="bfloat16")
    assert torch.allclose(found.attribution, expected.attribution, rtol=1e-3, atol=1e-5)
    assert torch.isfinite(found.history.positive).all()
    assert len(found.history.positive) == 5
    assert found.settings.precision == "float16"


def test_by_itself_it_says_nothing() -> None:
    """Who asks for no precision gets the best that there is."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [explained(Sized(size), images(), "auto") for size in (1.0, 1e6)]
    expected = [explained(Sized(1.0), images(), "float16")]
    expected += [explained(Sized(1e6), images(), "bfloat16")]
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one.attribution, other.attribution, rtol=1e-4, atol=1e-6)
        assert one.settings.precision == "auto"


def test_what_is_in_range_stays_in_float16() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = explained(Sized(1.0), images())
    single = explained(Sized(1.0), images(), precision="float32")
    assert torch.allclose(found.history.positive, single.history.positive, rtol=2e-3, atol=1e-3)
    assert not torch.equal(found.history.positive, single.history.positive)


@pytest.mark.parametrize(("largest", "fits"), [(1e5, True), (1e7, False)])
def test_activations_have_a_unit(largest: float, fits: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(392, 4))
    model = nn.Sequential(*model, nn.ReLU(), nn.Linear(4, 4))
    with torch.no_grad():
        model[0].bias.fill_(2 * largest)  # pyright: ignore
        model[5].weight.mul_(1 / largest)  # pyright: ignore
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        found = explained(model, images())
        single = explained(model, images(), precision="float32")
    assert (not any(NOTE in str(note.message) for note in notes)) == fits
    assert torch.allclose(found.positive_output, single.positive_output, rtol=0.02, atol=0.02)


def test_an_explainer_remembers() -> None:
    """Also past the second call, from which on a GPU replays a recording."""
    explainer = dmbp.DMBP(Sized(1e6).to(DEVICE).eval(), iterations=3, precision="float16")
    with pytest.warns(UserWarning, match=NOTE):
        first = explainer.explain(images(), target=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        later = [explainer.explain(images(), target=1) for _ in range(3)]
    for again in later:
        assert torch.allclose(again.positive_output, first.positive_output, rtol=1e-4, atol=1e-6)


def test_iterations_are_counted_once() -> None:
    counted: list[None] = []
    explainer = dmbp.DMBP(Sized(1e6).to(DEVICE).eval(), iterations=3, precision="float16")
    with pytest.warns(UserWarning, match=NOTE):
        explainer.explain(images(), target=1, on_iteration=lambda: counted.append(None))
    assert len(counted) == explainer.progress_steps == 3 + 10


@pytest.mark.skipif(DEVICE == "cpu", reason="recordings are made on GPUs only")
def test_a_recording_that_goes_out_of_range() -> None:
    """Recorded with images in range; one of the next is not."""
    explainer = dmbp.DMBP(Sized(100.0).to(DEVICE).eval(), iterations=3, precision="float16")
    for _ in range(3):
        explainer.explain(images(), target=1)
    with pytest.warns(UserWarning, match=NOTE):
        found = explainer.explain(images() * 1e5, target=1)
    expected = explained(Sized(100.0), images() * 1e5, precision="bfloat16", iterations=3)
    assert torch.allclose(found.positive_output, expected.positive_output, rtol=1e-3)
