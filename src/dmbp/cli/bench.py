"""`dmbp bench run`, `status`, `table`, `ranks`, `plot`, `export`, `merge` and `repair`."""

import shlex
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dmbp.cli.options import report_errors, stdout
from dmbp.errors import InputError
from dmbp.files import check_file, is_missing, printable, shown

if TYPE_CHECKING:
    from dmbp.bench.store import DamagedRow, Store

bench_app = typer.Typer(
    help="Score many methods on many photos, and print tables.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Format(StrEnum):
    """Formats of a table."""

    markdown = "markdown"
    latex = "latex"
    csv = "csv"


class RanksFormat(StrEnum):
    """Formats of ranks."""

    markdown = "markdown"
    json = "json"


PlanFile = Annotated[Path, typer.Argument(readable=False, help="The plan, a .toml file.")]
StoreFile = Annotated[Path, typer.Option("--store", help="The file of results.")]
TaskPatterns = Annotated[
    list[str] | None,
    typer.Option(
        "--task",
        metavar="PATTERN",
        help="Only tasks of this name; * and ? are wildcards. May be repeated.",
    ),
]
STORE = Path("dmbp-bench.sqlite")
BATCH = 32
WHOLE = "1/1"
MAX_FAILURES = 20
"""Reasons for failures that are listed at most."""


@bench_app.command()
def run(
    plan: PlanFile,
    store: StoreFile = STORE,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, mps, auto, or several as cuda:0,cuda:1.")
    ] = "cpu",
    workers: Annotated[int, typer.Option(min=1, help="Worker processes for each device.")] = 1,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Compute on the Ray cluster at this address; auto: the one this machine is in.",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Questions computed at once.")] = BATCH,
    shard: Annotated[
        str, typer.Option(help="i/n takes every n-th photo, starting at the i-th.")
    ] = WHOLE,
    retry: Annotated[
        bool, typer.Option("--retry", help="Retry the cells that failed before.")
    ] = False,
    keep_maps: Annotated[
        bool,
        typer.Option(
            "--keep-maps",
            help="Keep maps beside the store, so that metrics added later compute none.",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Compute the results that are missing. After an interruption the same command continues."""
    from dmbp.bench.plan import read_plan
    from dmbp.bench.run.driver import RunOptions, progress, run_plan, summary
    from dmbp.bench.run.local import parse_devices
    from dmbp.bench.store import Store

    with report_errors(interrupted="interrupted; the same command continues with what is left"):
        if ray is not None and (device, workers) != ("cpu", 1):
            raise InputError(
                "a Ray cluster decides which devices are used: leave out --device, --workers"
            )
        options = RunOptions(
            parse_devices(device, workers), batch, _parse_shard(shard), retry, ray, keep_maps
        )
        with progress(stdout, quiet=quiet) as show:
            tally = run_plan(read_plan(plan), store, options, show)
        if not quiet:
            flags = {"--device": device, "--workers": workers, "--ray": ray}
            flags |= {"--batch": batch, "--shard": shard, "--keep-maps": keep_maps}
            stdout.print(summary(tally, store, _command(plan, store, flags)))
            if tally.failed:
                _print_failures(Store(store, read_only=True))
        if tally.left_out or (tally.failed and not tally.done):
            raise typer.Exit(1)  # so that a batch queue reports it


def _command(plan: Path, store: Path, flags: Mapping[str, object]) -> str:
    """Return the command line of this run, without options at their defaults."""
    defaults = {
        "--device": "cpu",
        "--workers": 1,
        "--ray": None,
        "--batch": BATCH,
        "--shard": WHOLE,
        "--keep-maps": False,
    }
    changed = [
        (name,) if value is True else (name, str(value))
        for name, value in flags.items()
        if value != defaults[name]
    ]
    words = ["dmbp", "bench", "run", str(plan), "--store", str(store)]
    return shlex.join([*words, *(word for option in changed for word in option)])


def _print_failures(results: "Store", damaged: "Sequence[DamagedRow] | None" = None) -> None:
    """Print why cells failed, the most frequent reason first."""
    from dmbp.bench.failures import group_alike

    failures = group_alike(results.failures(damaged))
    for alike in failures[:MAX_FAILURES]:
        stdout.print(printable(str(alike)))
    if len(failures) > MAX_FAILURES:
        stdout.print(f"and {len(failures) - MAX_FAILURES} more; all: dmbp bench export")


def _print_damaged(damaged: "Sequence[DamagedRow]") -> None:
    """Print which rows are damaged, and how to replace them."""
    for row in damaged[:MAX_FAILURES]:
        stdout.print(printable(f"damaged: {row.problem}"))
    if len(damaged) > MAX_FAILURES:
        stdout.print(f"and {len(damaged) - MAX_FAILURES} more damaged rows")
    if damaged:
        stdout.print(
            "damaged rows count as missing: `dmbp bench run` computes those of its plan again, "
            "`dmbp bench repair` removes all of them"
        )


@bench_app.command()
def status(
    store: StoreFile = STORE,
    plan: Annotated[
        Path | None, typer.Option(help="A plan, to also show how much of it is left.")
    ] = None,
) -> None:
    """Show how many results there are, what failed or is damaged, and what is left of a plan."""
    from dmbp.bench.map_folder import folder_beside, folder_size
    from dmbp.bench.plan import read_plan
    from dmbp.bench.report.files import MethodLabels
    from dmbp.bench.run.driver import count_missing
    from dmbp.bench.store import Store

    with report_errors():
        _check_exists(store)
        parsed = None if plan is None else read_plan(plan)
        labels = MethodLabels(parsed)
        results = Store(store, read_only=True)
        damaged = results.damaged_rows()
        for model, dataset, method, settings, count, failed in results.counts(damaged):
            note = f", {failed} failed" if failed else ""
            called = f"{method} ({labels.find(method, settings)})"
            stdout.print(printable(f"{model}, {dataset}, {called}: {count - failed} done{note}"))
        maps, size = folder_size(folder_beside(store))
        if maps:
            stdout.print(
                f"{maps} maps kept in {shown(folder_beside(store))}: {size / 2**20:.1f} MiB"
            )
        _print_failures(results, damaged)
        _print_damaged(damaged)
        if parsed is not None:
            tally = count_missing(parsed, store)
            failed = f", {tally.failed_before} failed" if tally.failed_before else ""
            stdout.print(f"{plan}: {tally.left} of {tally.total} left{failed}")


@bench_app.command()
def table(
    plan: PlanFile,
    store: StoreFile = STORE,
    format: Annotated[Format, typer.Option(help="Format of the table.")] = Format.markdown,
) -> None:
    """Print a plan's table, with the paper's figures."""
    from dmbp.bench.plan import read_plan
    from dmbp.bench.report.table import table as make_table

    with report_errors():
        _check_exists(store)
        typer.echo(make_table(read_plan(plan), store, format.value), nl=False)


@bench_app.command()
def ranks(
    plan: PlanFile,
    store: StoreFile = STORE,
    format: Annotated[RanksFormat, typer.Option(help="Format.")] = RanksFormat.markdown,
    task: TaskPatterns = None,
) -> None:
    """Print a plan's mean ranks, by metric and overall, and every mean with its error."""
    from dmbp.bench.plan import read_plan
    from dmbp.bench.report.ranks import leaderboard

    with report_errors():
        _check_exists(store)
        chosen = read_plan(plan).with_tasks(task or [])
        typer.echo(leaderboard(chosen, store, format.value), nl=False)


@bench_app.command()
def plot(
    plan: PlanFile,
    out: Annotated[Path, typer.Argument(help="The picture to write, .png, .svg or .pdf.")],
    store: StoreFile = STORE,
    ranks: Annotated[
        bool, typer.Option("--ranks", help="Draw mean ranks and critical differences instead.")
    ] = False,
    task: TaskPatterns = None,
) -> None:
    """Draw a plan's insertion curves, and its scores against the time they take."""
    from dmbp.bench.plan import read_plan
    from dmbp.bench.report.files import plot as draw
    from dmbp.bench.report.files import plot_ranks

    with report_errors():
        _check_exists(store)
        (plot_ranks if ranks else draw)(read_plan(plan).with_tasks(task or []), store, out)
        stdout.print(f"→ {out}")


@bench_app.command()
def export(
    out: Annotated[Path, typer.Argument(help="The file to write, .csv or .parquet.")],
    store: StoreFile = STORE,
    plan: Annotated[
        Path | None, typer.Option(help="A plan, whose labels methods get in the file.")
    ] = None,
    curves: Annotated[
        bool, typer.Option("--curves", help="Write the points of curves instead of scores.")
    ] = False,
) -> None:
    """Write every row to a CSV or Parquet file."""
    from dmbp.bench.plan import read_plan
    from dmbp.bench.report.files import export as write
    from dmbp.bench.store import Store

    with report_errors():
        _check_exists(store)
        parsed = None if plan is None else read_plan(plan)
        count = write(Store(store, read_only=True), out, plan=parsed, curves=curves)
        stdout.print(f"{count} {'points' if curves else 'rows'} → {out}")


@bench_app.command()
def merge(
    other: Annotated[Path, typer.Argument(help="The file of results to add.")],
    store: StoreFile = STORE,
) -> None:
    """Add the results of another file; none is counted twice."""
    from dmbp.bench.store import Store

    with report_errors():
        _check_exists(other)
        added, existing = Store(store).merge(other)
        stdout.print(f"{added} rows added, {existing} already stored → {store}")


@bench_app.command()
def repair(store: StoreFile = STORE) -> None:
    """Remove damaged results, so that the next run computes them again."""
    from dmbp.bench.store import Store

    with report_errors():
        _check_exists(store)
        removed = Store(store).remove_damaged_rows()
        stdout.print(f"{removed} damaged rows removed → {shown(store)}")


def _check_exists(store: Path) -> None:
    if is_missing(store):
        raise InputError(
            f"there is no file of results {shown(store)}; `dmbp bench run` creates one"
        )
    check_file(store, what="file of results", error=InputError, may_be_empty=True)


def _parse_shard(text: str) -> tuple[int, int]:
    part, slash, parts = text.partition("/")
    are_numbers = slash and part.isdecimal() and parts.isdecimal() and len(text) <= 20
    if not (are_numbers and 1 <= int(part) <= int(parts)):
        raise InputError(f"a shard is written as 1/4 to 4/4, not {shown(text)!r}")
    return int(part) - 1, int(parts)
