"""Benchmarks: many questions to many methods, kept in one file that survives interruption."""

from dmbp.bench.cell import Cell
from dmbp.bench.store import Row, Store

__all__ = ["Cell", "Row", "Store"]
