"""The device that GPU tests run on, and the GPU engine's back ends by name."""

import pytest
import torch

from dmbp.engine.gpu.engine import GpuBackend
from dmbp.engine.gpu.torch_backend import TorchBackend

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Without a GPU, Triton's kernels are interpreted."""


def backend(*, triton: bool) -> GpuBackend:
    """Return the Triton back end, or the plain PyTorch one; skip the test if Triton is missing."""
    if not triton:
        return TorchBackend()
    pytest.importorskip("triton")
    from dmbp.engine.gpu.triton.backend import TritonBackend

    return TritonBackend()
