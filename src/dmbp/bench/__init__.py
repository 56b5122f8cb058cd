"""Benchmarks: many questions to many methods, with results in a file that survives interruption."""

from dmbp.bench.store import Cell, ResultRow, Store

__all__ = ["Cell", "ResultRow", "Store"]
