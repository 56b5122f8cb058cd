"""Engines: run a linear network's masked value and gradients, and learn its masks."""

from dmbp.engine.autograd import AutogradEngine
from dmbp.engine.base import Engine, Logits, Loss, OnIteration, Readout, Terms
from dmbp.engine.cpu.engine import CpuEngine
from dmbp.engine.select import (
    BYTES_AT_MOST,
    BYTES_TAKEN,
    PRECISIONS,
    engine_for,
    has_gpu_engine,
    prepare,
)

__all__ = [
    "BYTES_AT_MOST",
    "BYTES_TAKEN",
    "PRECISIONS",
    "AutogradEngine",
    "CpuEngine",
    "Engine",
    "Logits",
    "Loss",
    "OnIteration",
    "Readout",
    "Terms",
    "engine_for",
    "has_gpu_engine",
    "prepare",
]
