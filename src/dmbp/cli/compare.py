"""`dmbp compare`: every method side by side on one photograph."""

from typing import Annotated

import typer

from dmbp.cli.options import (
    OUT,
    Classes,
    Colours,
    ColourScale,
    Device,
    ModelName,
    OnePhoto,
    OneTargetOption,
    Out,
    Picture,
    PictureFormat,
    Quiet,
    Sites,
    SmoothOption,
    Weights,
    given,
    predict_photo,
    report_errors,
    stdout,
    write_result,
)


def compare(
    photo: OnePhoto,
    methods: Annotated[
        str, typer.Option(help="all, or names from `dmbp methods`, separated by commas.")
    ] = "all",
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="A method's setting, as rise.masks=1000; may be repeated."),
    ] = None,
    smooth: SmoothOption = None,
    sites: Sites = None,
    model: ModelName = None,
    weights: Weights = None,
    classes: Classes = None,
    target: OneTargetOption = None,
    device: Device = "cpu",
    out: Out = OUT,
    picture: PictureFormat = Picture.png,
    colours: ColourScale = Colours.red_blue,
    quiet: Quiet = False,
) -> None:
    """Every method side by side on one photograph, scored by insertion."""
    from dmbp.attribution import parse_method_names
    from dmbp.attribution.settings import read_settings, with_dmbp
    from dmbp.workflows.compare import compare as compare_methods
    from dmbp.workflows.prediction import ModelChoice

    console = None if quiet else stdout
    with report_errors():
        names = parse_method_names(methods)
        own = given(smooth=smooth, sites=sites)
        settings = with_dmbp(read_settings(setting or [], names), names, own)
        question = predict_photo(
            photo, ModelChoice(model, weights, classes, device), target, out, quiet
        )
        found = compare_methods(question, names, settings=settings, console=console)
        write_result(found, out / photo.stem, picture, colours, quiet)
