"""Back ends of the GPU engine, for tests that name one."""

import pytest

from dmbp.engine.gpu.engine import GpuBackend
from dmbp.engine.gpu.torch_backend import TorchBackend


def backend(*, triton: bool) -> GpuBackend:
    """The Triton back end, which runs interpreted on a CPU, or the plain one."""
    if not triton:
        return TorchBackend()
    pytest.importorskip("triton")
    from dmbp.engine.gpu.triton.backend import TritonBackend

    return TritonBackend()
