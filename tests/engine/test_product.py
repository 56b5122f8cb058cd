"""Matrix products on tensor cores, against PyTorch's in double precision."""

import pytest
import torch
from torch import Tensor

from dmbp.engine.plan.convolution import _product  # pyright: ignore[reportPrivateUsage]
from dmbp.precision import full_precision
from dmbp.process import temporarily_set
from tests.engine.backends import DEVICE

pytest.importorskip("triton")

from dmbp.engine.gpu.triton import product
from dmbp.engine.gpu.triton.backend import TritonKernels
from dmbp.engine.gpu.triton.product import choose_tile, multiply, multiply_by_tensor_cores

SINGLE = 2e-6
"""The largest error relative to the largest element: float32's, far from that of TF32, 1e-3."""


def assert_multiplied(found: Tensor, values: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    expected = values.double() @ weight.double().mT
    expected = expected if bias is None else expected + bias.double()
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= SINGLE * expected.abs().max()


@pytest.mark.parametrize("processors", [1, 132])
@pytest.mark.parametrize(
    ("rows", "channels", "depth"),
    [(1, 1, 1), (70, 33, 45), (130, 65, 257), (64, 128, 64), (3, 70, 1100)],
)
@pytest.mark.parametrize("biased", [False, True])
def test_products_are_exact_to_single_precision(
    biased: bool,
    rows: int,
    channels: int,
    depth: int,
    processors: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With sides that do not fill a tile; in large tiles, small ones and parts of sums."""
    monkeypatch.setattr(product, "multiprocessors", lambda _: processors)
    values = torch.randn(rows, depth, device=DEVICE)
    weight = torch.randn(channels, depth, device=DEVICE)
    bias = 9 * torch.randn(channels, device=DEVICE) if biased else None
    found = multiply_by_tensor_cores(values, weight, bias)
    assert_multiplied(found, values, weight, bias)
    assert torch.equal(found, multiply_by_tensor_cores(values, weight, bias))
    assert_multiplied(
        multiply_by_tensor_cores(values.T.contiguous().T, weight, bias), values, weight, bias
    )


@pytest.mark.parametrize("processors", [1, 132])
def test_batches_of_products(processors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "multiprocessors", lambda _: processors)
    values = torch.randn(3, 70, 300, device=DEVICE)
    weight = torch.randn(3, 67, 300, device=DEVICE)
    assert_multiplied(multiply_by_tensor_cores(values, weight, None), values, weight, None)


@pytest.mark.parametrize(
    ("rows", "channels", "depth", "products", "expected"),
    [
        (128 * 196, 256, 1024, 1, (128, 1)),
        (128 * 3136, 64, 256, 1, (64, 1)),  # large tiles would have a half to spare
        (3136, 128, 512, 1, (64, 1)),
        (784, 128, 512, 1, (64, 4)),
        (196, 256, 1024, 1, (64, 8)),
        (49, 512, 2048, 1, (64, 8)),
        (196, 64, 64, 1, (64, 1)),  # too few channels to share
        (98, 512, 512, 16, (64, 1)),
    ],
)
def test_every_multiprocessor_has_a_program_if_there_are_enough(
    rows: int, channels: int, depth: int, products: int, expected: tuple[int, int]
) -> None:
    assert choose_tile(rows, channels, depth, products=products, processors=132) == expected


def test_products_are_left_to_cublas_if_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Tensor] = []

    def counted(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        launched.append(values)
        return multiply_by_tensor_cores(values, weight, bias)

    monkeypatch.setattr(product, "multiply_by_tensor_cores", counted)
    values, bias = torch.randn(2, 40, 48, device=DEVICE), torch.randn(33, device=DEVICE)
    weight = torch.randn(2, 33, 48, device=DEVICE)

    def check(*, launches: int) -> None:
        launched.clear()
        with full_precision():
            assert_multiplied(multiply(values, weight), values, weight, None)
            found = multiply(values[0], weight[0], bias)
        assert_multiplied(found, values[0], weight[0], bias)
        assert len(launched) == launches

    monkeypatch.setattr(product, "has_fast_products", lambda _: True)
    check(launches=2)
    for tensors in ((values[:, :31], weight), (values, weight[:, :31])):
        with full_precision():
            assert_multiplied(multiply(*tensors), *tensors, None)
    assert len(launched) == 2
    monkeypatch.setattr(product, "has_fast_products", lambda _: False)
    check(launches=0)


@pytest.mark.parametrize("allows_tf32", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pointwise_convolutions_are_products(
    dtype: torch.dtype, allows_tf32: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In full single precision on tensor cores, otherwise by PyTorch; of any memory order."""
    launched: list[Tensor] = []

    def counted(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        launched.append(values)
        return multiply_by_tensor_cores(values, weight, bias)

    monkeypatch.setattr(product, "multiply_by_tensor_cores", counted)
    monkeypatch.setattr(product, "has_fast_products", lambda _: True)
    images = torch.randn(2, 40, 7, 5, device=DEVICE, dtype=dtype)
    weight = torch.randn(33, 40, 1, 1, device=DEVICE, dtype=dtype)
    bias = torch.randn(33, device=DEVICE, dtype=dtype)
    mask = torch.rand(2, 33, 7, 5, device=DEVICE, dtype=dtype)
    expected = torch.conv2d(images.double(), weight.double(), bias.double())
    with full_precision(), temporarily_set((torch.backends.cudnn, "allow_tf32", allows_tf32)):
        run = _product(weight, bias, TritonKernels())
        for laid_out in (images, images.contiguous(memory_format=torch.channels_last)):
            found, masked = run(laid_out, None), run(laid_out, mask)
            assert found.is_contiguous(memory_format=torch.channels_last)
            assert (found - expected).abs().max() <= SINGLE * expected.abs().max()
            assert (masked - expected * mask).abs().max() <= SINGLE * expected.abs().max()
    uses_tensor_cores = dtype == torch.float32 and not allows_tf32
    assert len(launched) == (4 if uses_tensor_cores else 0)
