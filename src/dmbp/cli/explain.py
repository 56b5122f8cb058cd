"""`dmbp explain`: a picture and a JSON file for each photograph."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from dmbp.cli.options import (
    OUT,
    Classes,
    Colours,
    ColourScale,
    Device,
    ModelName,
    Objective,
    Out,
    Picture,
    PictureFormat,
    Preset,
    Quiet,
    Sites,
    SmoothOption,
    Weights,
    given,
    report_errors,
    say_default,
    stdout,
)


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
    smooth: SmoothOption = None,
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
    from dmbp.render import PALETTES, PanelStyle
    from dmbp.workflows.explain import ExplainRequest, Outputs, explain_photos
    from dmbp.workflows.prediction import ModelChoice

    say_default(model, quiet)
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
    with report_errors():
        explain_photos(request, console=None if quiet else stdout)
