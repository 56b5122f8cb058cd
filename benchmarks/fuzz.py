"""Many hostile inputs: `python -m benchmarks.fuzz --tries 5000 --seed 1`.

Runs commands on photos, model files and what lies beside them, weights, plans, datasets, results
files, options, arrays, scans and targets that are damaged, tampered with or absurd (`tests/fuzz`),
and prints a table of what went wrong. A try is determined by the seed and its index: `--only 123`
runs one again and prints all of its output. NIfTI and DICOM files are read only if nibabel and
pydicom are installed.

    tries               commands that were run
    tracebacks          an exception that was not caught, or a sentence that calls it a bug
    ended               the process itself ended, such as by a crash in a decoder
    hangs               no end after 60 seconds
    half-written        a file that cannot be read, or a temporary one left behind
    exit codes          a wrong exit code: not 0, 1 or 2, or 0 without the files
    words               not one sentence on standard error
    executions          code in a model file was run
    peak                the most memory of a try, with its worker processes
"""

import argparse
import itertools
import shlex
import signal
import sys
import time
from collections.abc import Sequence

from tests.fuzz.judge import (
    BUG,
    CRASH,
    EXECUTED,
    EXIT_CODE,
    HALF_WRITTEN,
    HANG,
    MEMORY,
    TRACEBACK,
    WORDS,
    Outcome,
)
from tests.fuzz.pool import KINDS, Fuzzer, draw_kind

COLUMNS = {
    "tracebacks": (TRACEBACK, BUG),
    "ended": (CRASH,),
    "hangs": (HANG,),
    "half-written": (HALF_WRITTEN,),
    "exit codes": (EXIT_CODE,),
    "words": (WORDS,),
    "executions": (EXECUTED,),
    "over 3 GB": (MEMORY,),
}


def describe(outcome: Outcome) -> str:
    """Return a try that went wrong in a few lines."""
    command = shlex.join(["dmbp", *outcome.arguments])
    problems = "; ".join(f"{name}: {details.strip()[-600:]}" for name, details in outcome.problems)
    return (
        f"try {outcome.index} ({outcome.kind}: {outcome.note})\n  {command[:300]!a}\n  {problems}"
    )


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the counts for each kind of try, and for all."""
    lines = [
        f"| input | tries | refused | {' | '.join(COLUMNS)} | peak, GB | longest, s |",
        f"|{' --- |' * (len(COLUMNS) + 5)}",
    ]
    for kind in (*KINDS, "all"):
        chosen = [outcome for outcome in outcomes if kind in (outcome.kind, "all")]
        if chosen:
            lines.append(_line(kind, chosen))
    return "\n".join(lines)


def _line(kind: str, outcomes: Sequence[Outcome]) -> str:
    found = [{name for name, _ in outcome.problems} for outcome in outcomes]
    counts = [
        sum(not problems.isdisjoint(names) for problems in found) for names in COLUMNS.values()
    ]
    refused = sum(outcome.ended.code == 2 for outcome in outcomes)
    peak = max(outcome.peak for outcome in outcomes) / 2**30
    longest = max(outcome.seconds for outcome in outcomes)
    cells = [kind, len(outcomes), refused, *counts, f"{peak:.2f}", f"{longest:.1f}"]
    return f"| {' | '.join(map(str, cells))} |"


def indices(options: argparse.Namespace) -> list[int]:
    """Return the tries to run: the first ones of the kind that was asked for."""
    found = (
        index
        for index in itertools.count(options.first)
        if options.kind in (None, draw_kind(options.seed, index)[1])
    )
    return list(itertools.islice(found, options.tries))


def run(options: argparse.Namespace) -> int:
    started = time.monotonic()
    outcomes: list[Outcome] = []
    with Fuzzer(options.seed, workers=options.workers) as fuzzer:
        for outcome in fuzzer.outcomes(indices(options)):
            outcomes.append(outcome)
            if outcome.problems:
                print(describe(outcome), flush=True)
            if options.slow is not None and outcome.seconds > options.slow:
                command = shlex.join(outcome.arguments)[:200]
                print(
                    f"slow: try {outcome.index}, {outcome.seconds:.1f} s: {command!a}", flush=True
                )
            if len(outcomes) % 500 == 0:
                wrong = sum(bool(one.problems) for one in outcomes)
                print(f"{len(outcomes)} tries, {wrong} with problems", flush=True)
    minutes = (time.monotonic() - started) / 60
    print(f"seed {options.seed}, {len(outcomes)} tries in {minutes:.0f} minutes\n{table(outcomes)}")
    return int(any(outcome.problems for outcome in outcomes))


def run_one(options: argparse.Namespace) -> int:
    """Run one try and print everything about it."""
    with Fuzzer(options.seed) as fuzzer:
        (outcome,) = fuzzer.outcomes([options.only])
    print(describe(outcome).encode(errors="backslashreplace").decode())
    print(f"exit code {outcome.ended.code}, {outcome.seconds:.1f} s, {outcome.peak / 2**30:.2f} GB")
    for name, text in (("stdout", outcome.ended.out), ("stderr", outcome.ended.err)):
        print(f"--- {name}\n{text.encode(errors='backslashreplace').decode()}")
    print(outcome.ended.exception)
    return int(bool(outcome.problems))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the index of the first try")
    parser.add_argument("--kind", choices=KINDS, help="only tries of this kind")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", type=int, metavar="INDEX", help="run this try alone")
    parser.add_argument("--slow", type=float, help="also name tries that take so many seconds")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that workers and files are removed
    return run(options) if options.only is None else run_one(options)


if __name__ == "__main__":
    sys.exit(main())
