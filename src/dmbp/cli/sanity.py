"""`dmbp sanity`: whether maps change when the model's last layer is re-initialised."""

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


def sanity(
    photo: OnePhoto,
    methods: Annotated[
        str | None, typer.Option(help="all, or names from `dmbp methods`, separated by commas.")
    ] = None,
    draws: Annotated[int, typer.Option(help="How many new last layers are drawn.")] = 5,
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
    """Do maps change when the model forgets its last layer? They should."""
    from dmbp.attribution import parse_method_names
    from dmbp.attribution.settings import with_dmbp
    from dmbp.workflows.prediction import ModelChoice
    from dmbp.workflows.sanity import DEFAULT_METHODS, check_sanity

    console = None if quiet else stdout
    with report_errors():
        names = parse_method_names(methods or DEFAULT_METHODS)
        settings = with_dmbp({}, names, given(smooth=smooth, sites=sites))
        question = predict_photo(
            photo, ModelChoice(model, weights, classes, device), target, out, quiet
        )
        found = check_sanity(question, names, settings=settings, draws=draws, console=console)
        write_result(found, out / photo.stem, picture, colours, quiet)
