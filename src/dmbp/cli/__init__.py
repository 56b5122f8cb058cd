"""The command line: `dmbp explain`, `compare`, `sanity`, `doctor`, `bench`, `demo`, and lists.

Exit codes: 0 done, 2 something to put right (one sentence says what), 1 a fault of dmbp's own.
"""

import os
from typing import Annotated

# Threads of torch's that wait for others would keep a core busy for milliseconds; beside another
# program that slows an explanation down twentyfold. Read when torch is first imported.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

import typer

from dmbp import __version__
from dmbp.cli.bench import bench_app
from dmbp.cli.compare import compare
from dmbp.cli.demo import demo
from dmbp.cli.doctor import doctor
from dmbp.cli.explain import explain
from dmbp.cli.options import stdout
from dmbp.cli.sanity import sanity

app = typer.Typer(
    help="Explain what an image classifier saw.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,  # usage errors in a line or two, not in a box
)
for command in (explain, compare, sanity, demo, doctor):
    app.command()(command)
app.add_typer(bench_app, name="bench")


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Explain what an image classifier saw."""
    if version:
        stdout.print(f"dmbp {__version__}")
        raise typer.Exit


@app.command()
def models() -> None:
    """List the models that can be asked for by name."""
    from dmbp.models import model_names

    for name in model_names():
        stdout.print(name)


@app.command("methods")
def list_methods() -> None:
    """List the attribution methods."""
    from dmbp.attribution import METHODS

    width = max(map(len, METHODS))
    for name, row in METHODS.items():
        stdout.print(f"{name:{width}s}  {row.title}")
