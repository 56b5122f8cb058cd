"""Benchmarks: many methods on many photos, with results in a file that survives interruption.

A *question* is one class on one photo: where does the model see it?
A *cell* is a question answered by one method under given settings, on one model.
A *row* is the stored result of a cell: its scores, or why it failed.
A *unit* is the work a worker is given at once: the missing cells of a few photos.
A *part* is the share of a unit that one method under given settings computes together.

- `plan`: what is computed: tasks (a dataset and a model) times methods with their settings;
- `identity`: which weights and preprocessing a result belongs to;
- `units`: the questions of a task, and the cells that are still missing;
- `scoring`: a function for each metric;
- `store`: rows in one SQLite file;
- `paper`: the paper's figures, to be printed beside ours;
- `run/`: computes a plan; `report/`: shows its results.
"""

from dmbp.bench.store import Cell, ResultRow, Store

__all__ = ["Cell", "ResultRow", "Store"]
