"""Whether killed benchmark runs lose anything: `python -m benchmarks.kills --kills 50`.

`dmbp bench run` is killed at random moments, from its first import to its last rows, by SIGKILL and
SIGTERM: the driver, one of its workers, or all of them. After each kill, the processes that should
be gone are looked for three seconds later. The same command then continues. In the end the rows are
compared with those of a run that nobody disturbed. `--leaderboard` does the same with a plan whose
maps are kept, and that names four metrics at first and twelve later.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.processes import (
    alive,
    children,
    count,
    ended,
    start,
    wait_for_more,
    workers_of,
)
from tests.bench.tiny import make_plan, run_undisturbed, stored_rows

SECONDS = 3.0
"""How long after a kill nothing may be left of what was killed."""

SIGNALS = (signal.SIGKILL, signal.SIGTERM)
ROWS_PER_PHOTO = 2
PHOTOS = 40


@dataclass
class Counts:
    """What was found in all runs."""

    kills: Counter[str] = field(default_factory=Counter[str])
    orphans: int = 0
    lost: int = 0
    doubled: int = 0
    different: int = 0
    given_up: int = 0
    finished: int = 0


LEADERBOARD = (
    *("IM", "deletion", "gap", "ROAD", "infidelity", "drop", "sparseness", "red true", "blue true"),
    *("MPRT", "random logit", "max-sensitivity"),
)
"""The metrics of `--leaderboard`; each of its runs begins with the first few."""

FIRST = 4


class KilledRun:
    """A plan that is run again and again into one store until it is complete."""

    def __init__(
        self, folder: Path, chance: random.Random, *, photos: int, leaderboard: bool = False
    ) -> None:
        self.plan = make_plan(folder, photos=photos, model="slow")
        self.store = folder / "killed.sqlite"
        self._metrics = LEADERBOARD if leaderboard else ()
        self._options = ("--keep-maps",) if leaderboard else ()
        self._name_metrics(LEADERBOARD[:FIRST])
        self._chance = chance
        self.process: subprocess.Popen[str] | None = None

    def _name_metrics(self, metrics: Sequence[str]) -> None:
        """Write these metrics into the plan, if it is a leaderboard."""
        if self._metrics:
            lines = self.plan.read_text().splitlines()
            named = [line if not line.startswith("metrics") else "" for line in lines]
            self.plan.write_text("\n".join([*named, f"metrics = {list(metrics)}"]))

    def kill(self, counts: Counts) -> bool:
        """Kill something of the run at a random moment; return False if the run has ended first."""
        if self._chance.random() < 0.3:
            self._name_metrics(self._metrics)  # the run that is started next has all
        process = self._running()
        if self._chance.random() < 0.3:
            time.sleep(self._chance.random() * 4)
        else:
            wait_for_more(self.store, process)
            time.sleep(self._chance.random() * 0.3)
        workers = workers_of(process.pid)
        if process.poll() is not None:
            return False
        victim = self._chance.choice(["driver", *(["worker", "both"] if workers else [])])
        number = self._chance.choice(SIGNALS)
        gone = [self._chance.choice(workers)] if victim == "worker" else self._all()
        killed = {"driver": [process.pid], "worker": gone, "both": [process.pid, *workers]}[victim]
        for pid in killed:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        counts.kills[f"{victim}, {signal.Signals(number).name}"] += 1
        if victim != "worker":
            process.wait()
        time.sleep(SECONDS)
        left = [pid for pid in gone if alive(pid)]
        counts.orphans += len(left)
        if left:
            print(f"left after {victim}, {signal.Signals(number).name}: {left}", flush=True)
        return True

    def _all(self) -> list[int]:
        """Return the driver and everything that it has started."""
        assert self.process is not None
        return [self.process.pid, *children(self.process.pid)]

    def _running(self) -> subprocess.Popen[str]:
        """Return the run, started again if it is not running."""
        if self.process is None or self.process.poll() is not None:
            workers = self._chance.choice((1, 2, 2, 3))
            options = ("--workers", str(workers), *self._options)
            self.process = start(self.plan, self.store, *options)
        return self.process

    def finish(self, counts: Counts) -> None:
        """Let the run end, and compare its rows with those of an undisturbed one."""
        if self.process is not None and self.process.poll() is None:
            ended(self.process)
        self._name_metrics(self._metrics)
        code, said = ended(start(self.plan, self.store, *self._options))
        if (code, said) != (0, ""):
            sys.exit(f"the last run ended with code {code}: {said}")
        counts.given_up += sum(row[-1] is not None for row in stored_rows(self.store))
        ended(start(self.plan, self.store, "--retry", *self._options))
        compare(stored_rows(self.store), run_undisturbed(self.plan, batch=1)[0], counts)
        counts.finished += 1


Rows = Sequence[tuple[object, ...]]


def compare(found: Rows, expected: Rows, counts: Counts) -> None:
    """Count the rows that are missing, there twice, or different."""
    keys = Counter(row[0] for row in found)
    by_key = {row[0]: row for row in found}
    counts.lost += sum(row[0] not in keys for row in expected)
    counts.doubled += sum(number - 1 for number in keys.values())
    counts.different += sum(by_key.get(row[0], row) != row for row in expected)
    counts.different += len(keys.keys() - {row[0] for row in expected})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--photos", type=int, default=PHOTOS, help="photos of each run")
    parser.add_argument(
        "--leaderboard", action="store_true", help="many metrics, added halfway, with kept maps"
    )
    options = parser.parse_args()
    chance, counts = random.Random(options.seed), Counts()
    while counts.kills.total() < options.kills:
        with tempfile.TemporaryDirectory() as folder:
            run = KilledRun(
                Path(folder), chance, photos=options.photos, leaderboard=options.leaderboard
            )
            while counts.kills.total() < options.kills and run.kill(counts):
                rows = f"{count(run.store)} of {ROWS_PER_PHOTO * options.photos} rows"
                print(f"kill {counts.kills.total()}: {rows}", flush=True)
            run.finish(counts)
    for name, number in sorted(counts.kills.items()):
        print(f"{name}: {number} kills")
    print(
        f"{counts.kills.total()} kills in {counts.finished} runs of "
        f"{ROWS_PER_PHOTO * options.photos} rows with seed {options.seed}: "
        f"{counts.orphans} processes left after {SECONDS:g} s, "
        f"{counts.lost} rows lost, {counts.doubled} doubled, {counts.different} different; "
        f"{counts.given_up} given up after three lost workers and computed by --retry"
    )
    return int(any((counts.orphans, counts.lost, counts.doubled, counts.different)))


if __name__ == "__main__":
    sys.exit(main())
