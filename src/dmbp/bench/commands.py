"""`dmbp bench run`, `status`, `table`, `export`, `merge`."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dmbp.errors import InputError, OutputError
from dmbp.terminal import one_sentence, output

if TYPE_CHECKING:
    from dmbp.bench.run import Tally

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


@bench_app.command()
def run(
    plan: PlanFile,
    store: StoreFile = STORE,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1…")] = "cpu",
    batch: Annotated[int, typer.Option(min=1, help="Photos at once.")] = 32,
    shard: Annotated[
        str, typer.Option(help="i/n: every n-th photo, from the i-th of 1 to n.")
    ] = "1/1",
    retry: Annotated[bool, typer.Option("--retry", help="Also what failed before.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Compute what the store does not have yet. Interrupt it, and go on with the same command."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from dmbp.bench.plan import read_plan
    from dmbp.bench.run import RunOptions, run_plan

    with one_sentence():
        asked = read_plan(plan)
        options = RunOptions(device=device, batch=batch, shard=_shard(shard), retry=retry)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=output, transient=True, disable=quiet) as progress:
            line = progress.add_task("loading")

            def told(tally: "Tally", method: str) -> None:
                rate = tally.done / max(progress.tasks[0].elapsed or 0.0, 1e-9)
                text = f"{method}: {tally.done} done, {rate:.3g} a second"
                failed = f", {tally.failed} failed" if tally.failed else ""
                progress.update(line, description=text + failed)

            tally = run_plan(asked, store, options, told)
        if not quiet:
            output.print(
                f"{tally.done} computed, {tally.kept} there already, {tally.failed} failed"
            )
            if tally.failed:
                output.print(f"what failed: dmbp bench status --store {store}; again: --retry")


@bench_app.command()
def status(store: StoreFile = STORE) -> None:
    """How many results there are, and what failed."""
    from dmbp.bench.store import Store

    with one_sentence():
        _exists(store)
        results = Store(store)
        for model, dataset, method, count, failed in results.counts():
            note = f", {failed} failed" if failed else ""
            output.print(f"{model}, {dataset}, {method}: {count - failed} done{note}")
        for failure, count in results.failures()[:20]:
            output.print(f"{count} × {failure}")


@bench_app.command()
def table(
    plan: PlanFile,
    store: StoreFile = STORE,
    format: Annotated[Format, typer.Option(help="What it is written in.")] = Format.markdown,
) -> None:
    """A plan's table, beside the paper's figures."""
    from dmbp.bench.plan import read_plan
    from dmbp.bench.table import table as make_table

    with one_sentence():
        _exists(store)
        typer.echo(make_table(read_plan(plan), store, format.value), nl=False)


@bench_app.command()
def export(
    out: Annotated[Path, typer.Argument(help="A file to write, .csv.")], store: StoreFile = STORE
) -> None:
    """Every row as CSV."""
    from dmbp.bench.export import write_csv
    from dmbp.bench.store import Store

    with one_sentence():
        _exists(store)
        if out.suffix != ".csv":
            raise InputError(f"results are exported to a .csv file, not {out}")
        try:
            count = write_csv(Store(store), out)
        except OSError as error:
            raise OutputError(f"cannot write {out}: {error.strerror}") from error
        output.print(f"{count} rows → {out}")


@bench_app.command()
def merge(
    other: Annotated[Path, typer.Argument(help="A file of results to take in.")],
    store: StoreFile = STORE,
) -> None:
    """Take in the results of another file; none is counted twice."""
    from dmbp.bench.store import Store

    with one_sentence():
        _exists(other)
        Store(store).merge(other)


def _exists(store: Path) -> None:
    if not store.is_file():
        raise InputError(f"there is no file of results {store}; `dmbp bench run` makes one")


def _shard(text: str) -> tuple[int, int]:
    part, slash, parts = text.partition("/")
    if not (slash and part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise InputError(f"a shard is written as 1/4 to 4/4, not {text!r}")
    return int(part) - 1, int(parts)
