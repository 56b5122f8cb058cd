"""Cells with made-up contents; imports no torch, so that processes that write them start fast."""

from dataclasses import replace

from dmbp.bench.store import Cell

CELL = Cell("voc", "a", "p1", "cat", "resnet50", "w1", "gradcam", {"signed": True}, {"steps": 28})


def cells(count: int) -> list[Cell]:
    """Return cells of different photos."""
    return [replace(CELL, image=f"image {k}", photo=f"p{k}") for k in range(count)]
