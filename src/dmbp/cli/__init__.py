"""The command line: a module for each command, and `options` for what they share.

A command parses its options and calls a function of `dmbp.workflows` (or `dmbp.bench`). Exit codes:
0 for success, 2 for an error that the user can correct (one sentence says how), 1 for a bug in dmbp
or a benchmark with failures, 130 for an interrupt. `dmbp --debug COMMAND` also prints tracebacks.

Slow imports are inside the commands, so that `dmbp --help` does not wait for PyTorch.
"""

import os
import sys
from io import TextIOWrapper
from typing import Annotated

# PyTorch's threads spin for milliseconds while they wait for each other, which slows an explanation
# down twentyfold if another program needs the core. The variable is read when torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

import typer

from dmbp import __version__
from dmbp.cli.bench import bench_app
from dmbp.cli.boxes import boxes
from dmbp.cli.compare import compare
from dmbp.cli.demo import demo
from dmbp.cli.doctor import doctor
from dmbp.cli.explain import explain
from dmbp.cli.options import CommandGroup, set_debugging, stderr, stdout
from dmbp.cli.sanity import sanity
from dmbp.cli.serve import serve

app = typer.Typer(
    cls=CommandGroup,
    help="Explain what an image classifier saw.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,  # usage errors as plain lines, not in a box
)
for command in (explain, boxes, compare, sanity, serve, demo, doctor):
    app.command()(command)
app.add_typer(bench_app, name="bench")


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Also print the traceback of an error.")
    ] = False,
) -> None:
    """Explain what an image classifier saw."""
    set_debugging(debug)
    # A file's name need not be text that the terminal can show.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if version:
        stdout.print(f"dmbp {__version__}")
        raise typer.Exit


OTHER_MODELS = """
besides these names, --model takes
  timm:NAME                a model of timm, such as timm:resnet50.a1_in1k
  hf:NAME                  a model of Hugging Face, such as hf:google/vit-base-patch16-224
  FOLDER                   the same from a folder that save_pretrained wrote, such as ./my-vit
  FILE.pt2, FILE.onnx      a program of torch.export, an ONNX file
  package.module:factory   your own"""


@app.command()
def models() -> None:
    """List the names that --model takes, and how other models are named."""
    from dmbp.models import model_names

    for name in model_names():
        stdout.print(name)
    stderr.print(OTHER_MODELS)


@app.command("methods")
def list_methods() -> None:
    """List the attribution methods that --methods takes."""
    from dmbp.attribution import METHODS

    width = max(map(len, METHODS))
    for name, row in METHODS.items():
        stdout.print(f"{name:{width}s}  {row.title}")
