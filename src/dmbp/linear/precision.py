"""Single precision that is single precision.

On recent GPUs PyTorch runs float32 convolutions in TF32, with ten bits of mantissa. Learning masks
multiplies such errors: batched and alone, the same image gave terms ten per cent apart after 50
iterations (ResNet50, H200). Inside `full_precision()` float32 means float32.
"""

from collections.abc import Generator
from contextlib import contextmanager

from torch import backends


@contextmanager
def full_precision() -> Generator[None]:
    """Switch TF32 off, and back as it was on the way out."""
    # The older switches: torch.export reads these, and stops where only the newer were set.
    before = backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32
    try:
        backends.cudnn.allow_tf32 = backends.cuda.matmul.allow_tf32 = False
        yield
    finally:
        backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32 = before
