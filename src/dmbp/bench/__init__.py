"""Benchmarks: many methods on many photos, with results in a file that survives interruption.

A *question* is one class on one photo: where does the model see it?
A *cell* is a question answered by one method under given settings, on one model.
A *row* is the stored result of a cell: its scores, or why it failed.
A *unit* is the work that a worker gets at once: the missing cells of a few photos.
A *part* is the share of a unit that one method under given settings computes together.

- `plan`: the tasks (a dataset and a model) and the methods, with settings, to compute;
- `identity`: which weights and preprocessing a result belongs to;
- `units`: the questions of a task, and the cells that are still missing;
- `scoring`: a function for each metric;
- `store`: rows in one SQLite file;
- `paper`: the paper's figures, to be printed with ours;
- `run/`: computes a plan; `report/`: shows its results.
"""

from dmbp.bench.store import Cell, ResultRow, Store

__all__ = ["Cell", "ResultRow", "Store"]
