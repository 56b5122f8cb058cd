"""The command line: `dmbp explain`, `dmbp models`.

Exit codes: 0 done, 2 something to put right (one sentence says what), 1 a fault of dmbp's own.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from dmbp import __version__
from dmbp.errors import DMBPError

app = typer.Typer(
    help="Explain what an image classifier saw.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,  # usage errors in a line or two, not in a box
)
_errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
_output = Console(soft_wrap=True, highlight=False, markup=False)


class Preset(StrEnum):
    """The presets of DMBP."""

    fast = "fast"
    paper = "paper"


class Objective(StrEnum):
    """The objectives of DMBP."""

    all = "all"
    posneg = "posneg"
    pos = "pos"


class Picture(StrEnum):
    """File formats of pictures."""

    png = "png"
    svg = "svg"
    pdf = "pdf"


class Colours(StrEnum):
    """The colour scales."""

    red_blue = "red-blue"
    purple_orange = "purple-orange"


@contextmanager
def _one_sentence() -> Generator[None]:
    """Turn an error the user can put right into one sentence and exit code 2."""
    try:
        yield
    except DMBPError as error:
        _errors.print(Text("dmbp: ", "red") + Text(" ".join(str(error).split())))
        raise typer.Exit(2) from None


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Explain what an image classifier saw."""
    if version:
        _output.print(f"dmbp {__version__}")
        raise typer.Exit


@app.command()
def explain(
    photos: Annotated[list[Path], typer.Argument(help="Photographs, or folders of them.")],
    model: Annotated[
        str | None,
        typer.Option(help="A name from `dmbp models`, or package.module:factory."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="A .safetensors or .pth file for the model.")
    ] = None,
    classes: Annotated[
        Path | None, typer.Option(help="A text file with a class name a line.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="Class to explain, by number or name; may be repeated. Default: the top."
        ),
    ] = None,
    preset: Annotated[Preset, typer.Option(help="fast, or the paper's settings.")] = Preset.fast,
    objective: Annotated[Objective | None, typer.Option(help="What the masks learn.")] = None,
    iterations: Annotated[int | None, typer.Option(help="How long the masks learn.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="RMSProp's learning rate.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1…")] = "cpu",
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("dmbp-out"),
    report: Annotated[bool, typer.Option("--report", help="Also one HTML page of all.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Also the maps: .npy, 16-bit PNG.")] = False,
    gif: Annotated[bool, typer.Option("--gif", help="Also a GIF of pixels put in.")] = False,
    picture: Annotated[Picture, typer.Option(help="Format of the picture.")] = Picture.png,
    colours: Annotated[Colours, typer.Option(help="Colours for and against.")] = Colours.red_blue,
    overlay: Annotated[
        float | None, typer.Option(min=0, max=1, help="How much of the photo shows under the map.")
    ] = None,
    smooth: Annotated[
        float | None, typer.Option(min=0, max=0.2, help="Smoothing, as a part of the side.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Explain photographs: a picture and a JSON file for each."""
    from dmbp.explain import ExplainRequest, Outputs, explain_photos
    from dmbp.models import DEFAULT
    from dmbp.render import PALETTES, PanelStyle

    if model is None and not quiet:
        _output.print(f"no --model given: using {DEFAULT}, the model in the box (20 VOC classes)")
    given = {"faint": overlay, "smoothing": smooth}
    looks = {name: value for name, value in given.items() if value is not None}
    request = ExplainRequest(
        photos=photos,
        model=model or DEFAULT,
        weights=weights,
        classes=classes,
        targets=target or [],
        preset=preset.value,
        objective=objective.value if objective is not None else None,
        iterations=iterations,
        learning_rate=learning_rate,
        device=device,
        outputs=Outputs(
            out,
            replace(PanelStyle(palette=PALETTES[colours.value]), **looks),
            suffix=f".{picture.value}",
            report=report,
            raw=raw,
            gif=gif,
        ),
    )
    with _one_sentence():
        explain_photos(request, console=None if quiet else _output)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("dmbp-demo"),
) -> None:
    """Explain sample photos with the model in the box."""
    from dmbp.demo import run_demo

    with _one_sentence():
        run_demo(out, console=_output)


@app.command()
def models() -> None:
    """List the models that can be asked for by name."""
    from dmbp.models import model_names

    for name in model_names():
        _output.print(name)
