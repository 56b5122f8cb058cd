"""Benchmarks: many methods on many photos, with results in a file that survives interruption.

A *question* is one class on one photo: where does the model see it?
A *cell* is a question answered by one method under given settings, on one model.
A *row* is the stored result of a cell: its scores, or why it failed.
A *unit* is the work that a worker gets at once: the missing cells of a few photos.
A *part* is the share of a unit that one method under given settings computes together: questions
that lack the same metrics.

- `plan`: the tasks (a dataset and a model) and the methods, with settings, to compute;
- `identity`: which weights and preprocessing a result belongs to;
- `units`: the questions of a task, and the cells that are still missing;
- `scoring`: a function for each metric of `dmbp.metric_table`;
- `map_folder`: maps that are kept beside a store;
- `store`: rows in one SQLite file;
- `paper`: the paper's figures, to be printed with ours;
- `run/`: computes a plan; `report/`: shows its results. `read` returns them as data frames.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dmbp.bench.store import Cell, ResultRow, Store

if TYPE_CHECKING:
    from dmbp.bench.report.frames import read

__all__ = ["Cell", "ResultRow", "Store", "read"]


def __getattr__(name: str) -> Any:
    if name == "read":  # imported on first use, because it takes torch to import
        return import_module("dmbp.bench.report.frames").read
    raise AttributeError(f"module 'dmbp.bench' has no attribute {name!r}")
