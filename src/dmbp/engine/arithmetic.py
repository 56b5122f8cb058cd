"""How a GPU adds up the products of an iteration: in single precision, whatever their factors are.

In half precision cuBLAS may by default keep sums in 16 bits where it adds a product up in several
pieces. What the caller has switched on or off is as it was on the way out.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from torch import backends

from dmbp.linear.whole_process import switched

_IN_HALF = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")


@contextmanager
def sums_in_single_precision(*, allow_tf32: bool) -> Generator[None]:
    """Sums in single precision; its own factors may be rounded to TF32 where that is allowed."""
    matmul: Any = backends.cuda.matmul
    switches = [(backends.cudnn, "allow_tf32", allow_tf32), (matmul, "allow_tf32", allow_tf32)]
    switches += [(matmul, name, False) for name in (*_IN_HALF, "allow_fp16_accumulation")]
    switches = [switch for switch in switches if hasattr(*switch[:2])]  # the last is of torch 2.7
    with switched(*switches):
        yield
