"""Engines: run a linear network's masked value and gradients, and learn its masks."""

from dmbp.engine.choice import (
    BYTES_AT_MOST,
    BYTES_TAKEN,
    PRECISIONS,
    engine_for,
    has_gpu_engine,
    prepare,
)
from dmbp.engine.engine import Engine, Logits, OnIteration
from dmbp.engine.fast import FastEngine
from dmbp.engine.loss import Loss
from dmbp.engine.reference import ReferenceEngine
from dmbp.engine.terms import Readout, Terms

__all__ = [
    "BYTES_AT_MOST",
    "BYTES_TAKEN",
    "PRECISIONS",
    "Engine",
    "FastEngine",
    "Logits",
    "Loss",
    "OnIteration",
    "Readout",
    "ReferenceEngine",
    "Terms",
    "engine_for",
    "has_gpu_engine",
    "prepare",
]
