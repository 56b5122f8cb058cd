"""What a run says of itself: a line that moves on a terminal, a line now and then in a log."""

import math
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from dmbp.bench.tally import Tally

SECONDS_BETWEEN_LINES = 60.0
"""In a log, where a line cannot be drawn over the last."""


@contextmanager
def progress(console: Console, *, quiet: bool) -> Generator[Callable[[Tally], None]]:
    """What to call with a run's tally as it grows."""
    started = time.monotonic()
    columns = (SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    shown = console.is_terminal and not quiet
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        line = bar.add_task("loading", total=None)
        last = -math.inf  # the first line at once

        def told(tally: Tally) -> None:
            nonlocal last
            now = time.monotonic()
            pace = tally.pace(now - started)
            bar.update(
                line, total=tally.total, completed=tally.total - tally.left, description=pace
            )
            if not quiet and not shown and now - last >= SECONDS_BETWEEN_LINES:
                last = now
                console.print(f"{tally.total - tally.left} of {tally.total}: {pace}")

        yield told


def summary(tally: Tally, store: Path, command: str) -> str:
    """What came of a run, and what to do about what failed; `command` is the one that ran."""
    text = f"{tally.done} computed, {tally.kept} there already, {tally.failed} failed"
    if tally.failed_before:
        text += f"; of those there already {tally.failed_before} failed before"
    if tally.left_out:
        text += f"; {tally.left_out} of the plan's tasks left out"
    if not tally.failed and not tally.failed_before:
        return text
    return f"{text}\nwhat failed: dmbp bench status --store {store}\nagain: {command} --retry"
