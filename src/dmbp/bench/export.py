"""Results as files that other programs read."""

import csv
import json
from pathlib import Path

from dmbp.bench.store import Store

COLUMNS = ("dataset", "image", "target", "model", "weights", "method", "settings")


def write_csv(store: Store, path: Path) -> int:
    """A line for each row: its cell, its scores by metric, seconds and failure; how many."""
    metrics = sorted({metric for row in store.rows() for metric in row.scores})
    count = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, *metrics, "seconds", "failure"])
        for row in store.rows():
            cell = [getattr(row.cell, column) for column in COLUMNS[:-1]]
            settings = json.dumps(row.cell.settings, sort_keys=True)
            scores = [row.scores.get(metric, "") for metric in metrics]
            writer.writerow([*cell, settings, *scores, row.seconds, row.failure])
            count += 1
    return count
