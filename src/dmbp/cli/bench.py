"""`dmbp bench run`, `status`, `table`, `plot`, `export`, `merge`."""

import shlex
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dmbp.cli.options import report_errors, stdout
from dmbp.errors import InputError

if TYPE_CHECKING:
    from dmbp.bench.store import Store

bench_app = typer.Typer(
    help="Run many methods on many photos, and make tables of their scores.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Format(StrEnum):
    """What tables are written in."""

    markdown = "markdown"
    latex = "latex"
    csv = "csv"


PlanFile = Annotated[Path, typer.Argument(help="A plan (.toml).")]
StoreFile = Annotated[Path, typer.Option("--store", help="The file that holds the results.")]
STORE = Path("dmbp-bench.sqlite")
BATCH = 32
WHOLE = "1/1"
SHOWN = 20
"""Kinds of failure that `status` lists."""


@bench_app.command()
def run(
    plan: PlanFile,
    store: StoreFile = STORE,
    device: Annotated[str, typer.Option(help="cpu, cuda, or several: cuda:0,cuda:1")] = "cpu",
    workers: Annotated[int, typer.Option(min=1, help="Processes for each device.")] = 1,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Compute on a Ray cluster; auto: the one here."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Questions at once.")] = BATCH,
    shard: Annotated[
        str, typer.Option(help="i/n: every n-th photo, from the i-th of 1 to n.")
    ] = WHOLE,
    retry: Annotated[bool, typer.Option("--retry", help="Also what failed before.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Compute what the store does not have yet. Interrupt it, and go on with the same command."""
    from dmbp.bench.plan import read_plan
    from dmbp.bench.run.driver import RunOptions, progress, run_plan, summary
    from dmbp.bench.run.local import devices
    from dmbp.bench.store import Store

    with report_errors(interrupted="interrupted; the same command goes on with what is left"):
        if ray is not None and (device, workers) != ("cpu", 1):
            raise InputError(
                "a Ray cluster's devices are used as they are: leave out --device, --workers"
            )
        options = RunOptions(devices(device, workers), batch, _shard(shard), retry, ray)
        with progress(stdout, quiet=quiet) as told:
            tally = run_plan(read_plan(plan), store, options, told)
        if not quiet:
            given = {"--device": device, "--workers": workers, "--ray": ray}
            given |= {"--batch": batch, "--shard": shard}
            stdout.print(summary(tally, store, _command(plan, store, given)))
            if tally.failed:
                _say_failures(Store(store, reading=True))
        if tally.left_out or (tally.failed and not tally.done):
            raise typer.Exit(1)  # a batch queue should know


def _command(plan: Path, store: Path, given: Mapping[str, object]) -> str:
    """What was asked for, as it is typed; what is as without saying so is left out."""
    same = {"--device": "cpu", "--workers": 1, "--ray": None, "--batch": BATCH, "--shard": WHOLE}
    options = [(name, str(value)) for name, value in given.items() if value != same[name]]
    words = ["dmbp", "bench", "run", str(plan), "--store", str(store)]
    return shlex.join([*words, *(word for option in options for word in option)])


def _say_failures(results: "Store") -> None:
    """What failed, the most frequent first."""
    failures = results.failures()
    for failure, count in failures[:SHOWN]:
        stdout.print(f"{count} × {failure}")
    if len(failures) > SHOWN:
        stdout.print(f"and {len(failures) - SHOWN} more; all: dmbp bench export")


@bench_app.command()
def status(
    store: StoreFile = STORE,
    plan: Annotated[
        Path | None, typer.Option(help="A plan (.toml): also how much of it is left.")
    ] = None,
) -> None:
    """How many results there are, what failed, and what is left of a plan."""
    from dmbp.bench.plan import read_plan
    from dmbp.bench.run.driver import what_is_left
    from dmbp.bench.store import Store

    with report_errors():
        _exists(store)
        results = Store(store, reading=True)
        for model, dataset, method, count, failed in results.counts():
            note = f", {failed} failed" if failed else ""
            stdout.print(f"{model}, {dataset}, {method}: {count - failed} done{note}")
        _say_failures(results)
        if plan is not None:
            tally = what_is_left(read_plan(plan), store)
            failed = f", {tally.failed_before} failed" if tally.failed_before else ""
            stdout.print(f"{plan}: {tally.left} of {tally.total} left{failed}")


@bench_app.command()
def table(
    plan: PlanFile,
    store: StoreFile = STORE,
    format: Annotated[Format, typer.Option(help="What it is written in.")] = Format.markdown,
) -> None:
    """A plan's table, beside the paper's figures."""
    from dmbp.bench.plan import read_plan
    from dmbp.bench.report.table import table as make_table

    with report_errors():
        _exists(store)
        typer.echo(make_table(read_plan(plan), store, format.value), nl=False)


@bench_app.command()
def plot(
    plan: PlanFile,
    out: Annotated[Path, typer.Argument(help="A picture to write: .png, .svg or .pdf.")],
    store: StoreFile = STORE,
) -> None:
    """A plan's insertion curves, and its scores against the time they take."""
    from dmbp.bench.plan import read_plan
    from dmbp.bench.report.plot import plot as draw

    with report_errors():
        _exists(store)
        draw(read_plan(plan), store, out)
        stdout.print(f"→ {out}")


@bench_app.command()
def export(
    out: Annotated[Path, typer.Argument(help="A file to write, .csv or .parquet.")],
    store: StoreFile = STORE,
) -> None:
    """Every row as CSV or Parquet."""
    from dmbp.bench.report.export import export as write
    from dmbp.bench.store import Store

    with report_errors():
        _exists(store)
        stdout.print(f"{write(Store(store, reading=True), out)} rows → {out}")


@bench_app.command()
def merge(
    other: Annotated[Path, typer.Argument(help="A file of results to take in.")],
    store: StoreFile = STORE,
) -> None:
    """Take in the results of another file; none is counted twice."""
    from dmbp.bench.store import Store

    with report_errors():
        _exists(other)
        added, there = Store(store).merge(other)
        stdout.print(f"{added} rows added, {there} there already → {store}")


def _exists(store: Path) -> None:
    if not store.is_file():
        raise InputError(f"there is no file of results {store}; `dmbp bench run` makes one")


def _shard(text: str) -> tuple[int, int]:
    part, slash, parts = text.partition("/")
    if not (slash and part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise InputError(f"a shard is written as 1/4 to 4/4, not {text!r}")
    return int(part) - 1, int(parts)
