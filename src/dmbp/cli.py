"""The command line: `dmbp explain`, `compare`, `sanity`, `doctor`, `bench`, `demo`, and lists.

Exit codes: 0 done, 2 something to put right (one sentence says what), 1 a fault of dmbp's own.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

# Threads of torch's that wait for others would keep a core busy for milliseconds; beside another
# program that slows an explanation down twentyfold. Read when torch is first imported.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

import typer

from dmbp import __version__
from dmbp.bench.commands import bench_app
from dmbp.errors import PhotoError, TargetError
from dmbp.options import (
    OUT,
    Classes,
    Colours,
    ColourScale,
    Device,
    ModelName,
    Objective,
    OnePhoto,
    OneTarget,
    Out,
    Picture,
    PictureFormat,
    Preset,
    Quiet,
    Sites,
    Smooth,
    Weights,
    given,
)
from dmbp.terminal import one_sentence, output

if TYPE_CHECKING:
    from dmbp.compare import Comparison
    from dmbp.model_choice import ModelChoice
    from dmbp.photo_question import PhotoQuestion
    from dmbp.sanity import SanityCheck

app = typer.Typer(
    help="Explain what an image classifier saw.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,  # usage errors in a line or two, not in a box
)
app.add_typer(bench_app, name="bench")


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Explain what an image classifier saw."""
    if version:
        output.print(f"dmbp {__version__}")
        raise typer.Exit


@app.command()
def explain(
    photos: Annotated[list[Path], typer.Argument(help="Photographs, or folders of them.")],
    model: ModelName = None,
    weights: Weights = None,
    classes: Classes = None,
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
    smooth: Smooth = None,
    sites: Sites = None,
    device: Device = "cpu",
    out: Out = OUT,
    report: Annotated[bool, typer.Option("--report", help="Also one HTML page of all.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Also the maps: .npy, 16-bit PNG.")] = False,
    gif: Annotated[bool, typer.Option("--gif", help="Also a GIF of pixels put in.")] = False,
    picture: PictureFormat = Picture.png,
    colours: ColourScale = Colours.red_blue,
    overlay: Annotated[
        float | None, typer.Option(min=0, max=1, help="How much of the photo shows under the map.")
    ] = None,
    soften: Annotated[
        float | None,
        typer.Option(min=0, max=0.2, help="How far the map is softened, as a part of the side."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Explain photographs: a picture and a JSON file for each."""
    from dmbp.explain import ExplainRequest, Outputs, explain_photos
    from dmbp.model_choice import ModelChoice
    from dmbp.render import PALETTES, PanelStyle

    _say_default(model, quiet)
    settings = given(
        objective=None if objective is None else objective.value,
        iterations=iterations,
        learning_rate=learning_rate,
        smooth=smooth,
        sites=sites,
    )
    looks = given(faint=overlay, smoothing=soften)
    request = ExplainRequest(
        photos=photos,
        choice=ModelChoice(model, weights, classes, device),
        targets=target or [],
        settings={"preset": preset.value, **settings},
        outputs=Outputs(
            out,
            replace(PanelStyle(palette=PALETTES[colours.value]), **looks),
            suffix=f".{picture.value}",
            report=report,
            raw=raw,
            gif=gif,
        ),
    )
    with one_sentence():
        explain_photos(request, console=None if quiet else output)


@app.command()
def compare(
    photo: OnePhoto,
    methods: Annotated[
        str, typer.Option(help="all, or names from `dmbp methods`, separated by commas.")
    ] = "all",
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="A method's setting, as rise.masks=1000; may be repeated."),
    ] = None,
    smooth: Smooth = None,
    sites: Sites = None,
    model: ModelName = None,
    weights: Weights = None,
    classes: Classes = None,
    target: OneTarget = None,
    device: Device = "cpu",
    out: Out = OUT,
    picture: PictureFormat = Picture.png,
    colours: ColourScale = Colours.red_blue,
    quiet: Quiet = False,
) -> None:
    """Every method side by side on one photograph, scored by insertion."""
    from dmbp.attribution import method_names
    from dmbp.compare import compare as compare_methods
    from dmbp.method_settings import read_settings, with_dmbp
    from dmbp.model_choice import ModelChoice

    console = None if quiet else output
    with one_sentence():
        names = method_names(methods)
        own = given(smooth=smooth, sites=sites)
        settings = with_dmbp(read_settings(setting or [], names), names, own)
        question = _question(
            photo, ModelChoice(model, weights, classes, device), target, out, quiet
        )
        found = compare_methods(question, names, settings=settings, console=console)
        _write(found, out / photo.stem, picture, colours, quiet)


@app.command()
def sanity(
    photo: OnePhoto,
    methods: Annotated[
        str | None, typer.Option(help="all, or names from `dmbp methods`, separated by commas.")
    ] = None,
    draws: Annotated[int, typer.Option(help="How many new last layers are drawn.")] = 5,
    smooth: Smooth = None,
    sites: Sites = None,
    model: ModelName = None,
    weights: Weights = None,
    classes: Classes = None,
    target: OneTarget = None,
    device: Device = "cpu",
    out: Out = OUT,
    picture: PictureFormat = Picture.png,
    colours: ColourScale = Colours.red_blue,
    quiet: Quiet = False,
) -> None:
    """Do maps change when the model forgets its last layer? They should."""
    from dmbp.attribution import method_names
    from dmbp.method_settings import with_dmbp
    from dmbp.model_choice import ModelChoice
    from dmbp.sanity import DEFAULT_METHODS, check_sanity

    console = None if quiet else output
    with one_sentence():
        names = method_names(methods or DEFAULT_METHODS)
        settings = with_dmbp({}, names, given(smooth=smooth, sites=sites))
        question = _question(
            photo, ModelChoice(model, weights, classes, device), target, out, quiet
        )
        found = check_sanity(question, names, settings=settings, draws=draws, console=console)
        _write(found, out / photo.stem, picture, colours, quiet)


def _question(
    photo: Path, choice: "ModelChoice", targets: list[str] | None, out: Path, quiet: bool
) -> "PhotoQuestion":
    """The photo as the chosen model sees it; everything that may be wrong is met first."""
    from dmbp.data import read_photo
    from dmbp.explain import check_folder
    from dmbp.photo_question import ask

    if photo.is_dir():
        raise PhotoError(f"{photo} is a folder; this command takes one photo")
    if len(targets or []) > 1:
        raise TargetError("this command is about one class: give --target once")
    picture = read_photo(photo)
    check_folder(out)
    _say_default(choice.model, quiet)
    return ask(picture, str(photo), choice.load(), targets or [])


def _say_default(model: str | None, quiet: bool) -> None:
    from dmbp.models import DEFAULT

    if model is None and not quiet:
        output.print(f"no --model given: using {DEFAULT}, the model in the box (20 VOC classes)")


def _write(
    found: "Comparison | SanityCheck", stem: Path, picture: Picture, colours: Colours, quiet: bool
) -> None:
    """Write what was found beside `stem`, and say where."""
    from dmbp.render import PALETTES, PanelStyle

    style = PanelStyle(palette=PALETTES[colours.value])
    paths = found.write(stem.parent, stem.name, style, suffix=f".{picture.value}")
    if not quiet:
        output.print("→ " + ", ".join(str(path) for path in paths))


@app.command()
def demo(out: Out = Path("dmbp-demo")) -> None:
    """Explain sample photos with the model in the box."""
    from dmbp.demo import run_demo

    with one_sentence():
        run_demo(out, console=output)


@app.command()
def doctor(
    model: Annotated[str, typer.Argument(help="As for --model of the other commands.")],
    weights: Weights = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Side of the image. Default: the model's.")
    ] = None,
    device: Device = "cpu",
    smooth: Smooth = None,
    sites: Sites = None,
    all_sites: Annotated[bool, typer.Option("--all-sites", help="List every site.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Can this model be explained? What is captured, how exactly, and what it costs."""
    from dmbp.doctor import see
    from dmbp.model_choice import ModelChoice

    with one_sentence():
        choice = ModelChoice(model, weights, None, device, untrained=True)
        diagnosis = see(choice, size=size, frozen=given(smooth=smooth, sites=sites))
    if as_json:
        output.print(diagnosis.json())
    else:
        diagnosis.show(output, all_sites=all_sites)
    if diagnosis.found.refusal is not None:
        raise typer.Exit(2)


@app.command()
def models() -> None:
    """List the models that can be asked for by name."""
    from dmbp.models import model_names

    for name in model_names():
        output.print(name)


@app.command("methods")
def list_methods() -> None:
    """List the attribution methods."""
    from dmbp.attribution import METHODS

    width = max(map(len, METHODS))
    for name, row in METHODS.items():
        output.print(f"{name:{width}s}  {row.title}")
