"""Numerical precision: full float32, deterministic kernels, and tolerances.

On recent GPUs PyTorch runs float32 convolutions in TF32, which has ten bits of mantissa. Learning
masks amplifies such errors: after 50 iterations the terms of one image, explained alone and in a
batch, differed by ten per cent (ResNet50, H200). Inside `full_precision()` float32 therefore means
float32, even if the caller has enabled `torch.autocast`: a model is explained in the precision of
its weights.
"""

from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch
from torch import Tensor, backends

from dmbp.devices import in_float64
from dmbp.process import temporarily_set

AUTOCAST_DEVICES = ("cpu", "cuda", "mps")

RUN_PRECISIONS = ("float32", "tf32", "bfloat16")
"""Precisions that a float32 model may be run in when thousands of its outputs are averaged."""


@contextmanager
def reduced_precision(precision: str, device: str) -> Generator[None]:
    """Run float32 operations in `precision`, one of `RUN_PRECISIONS`, if the device supports it."""
    bfloat16 = torch.autocast(device, torch.bfloat16) if precision == "bfloat16" else nullcontext()
    with _allow_tf32(precision != "float32"), bfloat16:
        yield


@contextmanager
def full_precision() -> Generator[None]:
    """Disable TF32 and the caller's autocast inside, and restore both on exit."""
    with _allow_tf32(False), ExitStack() as stack:
        for device in filter(torch.is_autocast_enabled, AUTOCAST_DEVICES):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _allow_tf32(is_allowed: bool) -> AbstractContextManager[None]:
    # These are PyTorch's older switches: `torch.export` reads them, and fails if only the newer
    # ones are set.
    return temporarily_set(
        (backends.cudnn, "allow_tf32", is_allowed), (backends.cuda.matmul, "allow_tf32", is_allowed)
    )


@contextmanager
def deterministic_kernels() -> Generator[None]:
    """Use only cuDNN kernels that give the same sums every time.

    Other kernels add in whatever order their threads finish. Learning amplifies a difference in a
    gradient's last bit to several per cent of a map (ResNet50 with random weights).
    """
    with temporarily_set((backends.cudnn, "deterministic", True)):
        yield


TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 1e-4,
    torch.bfloat16: 5e-2,
    torch.float16: 1e-2,
}
"""The largest relative error of a linear network's output that counts as rounding, by dtype.

A capture is either exact or far off: rounding through a hundred layers stays two orders of
magnitude below these values in float32 and float64 (measured on torchvision's networks).
"""


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the largest error of any image, relative to that image's largest output.

    Tensors of different shapes have an infinite error.
    """
    if actual.shape != expected.shape:
        return float("inf")
    return float(relative_errors(actual, expected).max())


def relative_errors(actual: Tensor, expected: Tensor) -> Tensor:
    """Return the error of each image, relative to its largest output; the shapes are the same."""
    rows = expected.shape[0] if expected.dim() else 1
    actual, expected = (in_float64(part).reshape(rows, -1) for part in (actual, expected))
    largest = expected.abs().amax(1)
    error = (actual - expected).abs().amax(1)
    return torch.where(largest > 0, error / largest.clamp(min=1e-300), error)
