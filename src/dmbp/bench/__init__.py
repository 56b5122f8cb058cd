"""Benchmarks: many questions to many methods, kept in one file that survives interruption."""

from dmbp.bench.store import Cell, ResultRow, Store

__all__ = ["Cell", "ResultRow", "Store"]
