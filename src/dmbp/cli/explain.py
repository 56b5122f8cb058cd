"""`dmbp explain`: write a picture and a JSON file for each photo."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dmbp.cli.options import (
    DEFAULT_OUT,
    ColoursOption,
    Objective,
    OutOption,
    PaletteName,
    PictureFormat,
    PictureOption,
    Preset,
    QuietOption,
    RatherThanOption,
    RemovalName,
    SitesOption,
    SmoothOption,
    given_options,
    print_default_model,
    report_errors,
    stdout,
    takes_model,
)

if TYPE_CHECKING:
    from dmbp.workflows.prediction import ModelSpec


@takes_model
def explain(
    photos: Annotated[
        list[Path],
        typer.Argument(
            readable=False,
            help="Photos, or folders of photos. For models that take something else: arrays "
            "(.npy), tables and signals (.csv), or scans (.nii, .dcm, .tif).",
        ),
    ],
    spec: "ModelSpec",
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT",
            help="What to explain: a class, by number or name, or a part of other outputs, such as "
            "box:0, region:cat@box=40,30,90,120, step:#2, value:1 or similarity:image=FILE, with "
            "places in pixels of the photo; may be repeated. Default: the predicted class, the "
            "strongest box, and so on.",
        ),
    ] = None,
    rather_than: RatherThanOption = None,
    bands: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS",
            help="Which bands of an image with many pictures show, from 1, as red, green and blue: "
            "such as 3,2,1. Default: the first three.",
        ),
    ] = None,
    preset: Annotated[
        Preset,
        typer.Option(
            help="DMBP's settings: tested (the model is asked what each place is worth), fast (it "
            "is not), or those of the paper."
        ),
    ] = Preset.tested,
    objective: Annotated[
        Objective | None,
        typer.Option(
            help="The loss of the masks: all (the paper's), posneg (without its nuisance term) or "
            "pos (evidence in favour only). Default: tested posneg, fast and paper all."
        ),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(help="Iterations of learning masks. Default: tested 6, fast 50, paper 200."),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="Learning rate of the masks. Default: tested 0.3, fast 0.05, paper 0.01."
        ),
    ] = None,
    window: Annotated[
        float | None,
        typer.Option(
            help="Side of the windows that are tested, as a share of the photo's. Default: 0.25 "
            "(0.18 for those that are blurred)."
        ),
    ] = None,
    stride: Annotated[
        float | None,
        typer.Option(help="Distance between windows, likewise. Default: half a window."),
    ] = None,
    removal: Annotated[
        list[RemovalName] | None,
        typer.Option(
            help="What windows are replaced by to test them; may be repeated, and then all have to "
            "agree. Default: blur and mean, confirmed by noise."
        ),
    ] = None,
    smooth: SmoothOption = None,
    sites: SitesOption = None,
    out: OutOption = DEFAULT_OUT,
    report: Annotated[
        bool, typer.Option("--report", help="Also write an HTML page about all photos.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Also write the maps as .npy and 16-bit PNG files.")
    ] = False,
    whole_photo: Annotated[
        bool,
        typer.Option(
            "--whole-photo",
            help="Also draw the evidence over the whole photo at its own size, with a line around "
            "what the model saw; with --raw, the maps are written at that size, too.",
        ),
    ] = False,
    gif: Annotated[
        bool,
        typer.Option(
            "--gif", help="Also write a GIF in which the strongest pixels fill up a blurred photo."
        ),
    ] = False,
    picture: PictureOption = PictureFormat.png,
    colours: ColoursOption = PaletteName.red_blue,
    overlay: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="How visible the photo is under the map; 0 is white. Default: 0.45.",
        ),
    ] = None,
    soften: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=0.2,
            help="How far the drawn map is smoothed, as a fraction of its side (--smooth is about "
            "activations, not the map). Default: 0.012.",
        ),
    ] = None,
    terms: Annotated[
        bool,
        typer.Option(
            "--terms", help="Also draw the two streams' gradients and how the score adds up."
        ),
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Explain photos, or other inputs: write a picture and a JSON file for each.

    The picture shows which pixels speak for a class (red) and which against it (blue), and the
    photo without the strongest pixels of each colour, with the probability it then gets.
    """
    from dmbp.render import PALETTES, PanelStyle
    from dmbp.workflows.arrays import parse_bands
    from dmbp.workflows.explain import OutputOptions, explain_photos

    print_default_model(spec.model, quiet)
    settings = given_options(
        objective=None if objective is None else objective.value,
        iterations=iterations,
        learning_rate=learning_rate,
        window=window,
        stride=stride,
        removal=tuple(name.value for name in removal) if removal else None,
        smooth=smooth,
        sites=sites,
    )
    style = given_options(faint=overlay, smoothing=soften)
    output = OutputOptions(
        out,
        PanelStyle(palette=PALETTES[colours.value], terms=terms, **style),
        suffix=f".{picture.value}",
        report=report,
        raw=raw,
        gif=gif,
        whole_photo=whole_photo,
    )
    with report_errors():
        output = replace(output, bands=parse_bands(bands))
        explain_photos(
            photos,
            spec,
            output,
            targets=target or [],
            rather_than=rather_than or [],
            settings={"preset": preset.value, **settings},
            console=None if quiet else stdout,
        )
