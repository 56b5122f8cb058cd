"""Single precision that is single precision.

On recent GPUs PyTorch runs float32 convolutions in TF32, with ten bits of mantissa. Learning masks
multiplies such errors: batched and alone, the same image gave terms ten per cent apart after 50
iterations (ResNet50, H200). Inside `full_precision()` float32 means float32, also where the caller
has switched on `torch.autocast`: a model is explained in the precision of its weights.
"""

from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch
from torch import Tensor, backends

from dmbp.process import temporarily_set

AUTOCAST_DEVICES = ("cpu", "cuda")

RUN_PRECISIONS = ("float32", "tf32", "bfloat16")
"""What single precision may be rounded to where thousands of results are averaged."""


@contextmanager
def reduced_precision(rougher: str, device: str) -> Generator[None]:
    """Inside, single precision is rounded to another on a device, where that has it."""
    bfloat16 = torch.autocast(device, torch.bfloat16) if rougher == "bfloat16" else nullcontext()
    with _tf32(rougher != "float32"), bfloat16:
        yield


@contextmanager
def full_precision() -> Generator[None]:
    """Switch TF32 and the caller's autocast off, and back as they were on the way out."""
    with _tf32(False), ExitStack() as stack:
        for device in filter(torch.is_autocast_enabled, AUTOCAST_DEVICES):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _tf32(is_allowed: bool) -> AbstractContextManager[None]:
    # The older switches: torch.export reads these, and stops where only the newer were set.
    return temporarily_set(
        (backends.cudnn, "allow_tf32", is_allowed), (backends.cuda.matmul, "allow_tf32", is_allowed)
    )


@contextmanager
def deterministic_kernels() -> Generator[None]:
    """Of cuDNN's kernels, take those whose sums are the same each time.

    Others add in whatever order threads arrive. Learning makes of the last bit of a gradient's sign
    a different start, and of that per cents of a map (ResNet50 with random weights).
    """
    with temporarily_set((backends.cudnn, "deterministic", True)):
        yield


# A capture is wrong by a lot or not at all: rounding through a hundred layers stays two orders of
# magnitude under these in float32 and float64 (measured on torchvision's networks).
TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 1e-4,
    torch.bfloat16: 5e-2,
    torch.float16: 1e-2,
}


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The largest error of any image, relative to that image's largest output."""
    if found.shape != expected.shape:
        return float("inf")
    rows = expected.shape[0] if expected.dim() else 1
    found, expected = (part.double().reshape(rows, -1) for part in (found, expected))
    largest = expected.abs().amax(1)
    error = (found - expected).abs().amax(1)
    relative = torch.where(largest > 0, error / largest.clamp(min=1e-300), error)
    return float(relative.max())
