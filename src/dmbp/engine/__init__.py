"""Engines: run a linear network's masked value and gradients, and learn its masks."""

from dmbp.engine.autograd import AutogradEngine
from dmbp.engine.base import Engine, Logits, Loss, OnIteration, Readout, Terms
from dmbp.engine.cpu.engine import CpuEngine
from dmbp.engine.select import (
    MOST_BYTES,
    PRECISIONS,
    TYPICAL_BYTES,
    engine_for,
    has_gpu_engine,
    plan_for,
    prepare,
)

__all__ = [
    "MOST_BYTES",
    "PRECISIONS",
    "TYPICAL_BYTES",
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
    "plan_for",
    "prepare",
]
