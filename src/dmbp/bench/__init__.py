"""Benchmarks: many questions to many methods, with results in a file that survives interruption.

- `plan`: what is computed: tasks (a dataset and a model) times methods with their settings;
- `identity`: which weights and preprocessing a result belongs to;
- `units`: the questions of a task, and the cells that are still missing;
- `scoring`: a function for each metric;
- `store`: results in one SQLite file;
- `paper`: the paper's own figures, to be printed beside ours;
- `run/`: computes a plan; `report/`: shows its results.
"""

from dmbp.bench.store import Cell, ResultRow, Store

__all__ = ["Cell", "ResultRow", "Store"]
