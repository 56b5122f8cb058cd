"""`dmbp sanity`: check that maps change when the model's last layer is re-initialised."""

from typing import TYPE_CHECKING, Annotated

import typer

from dmbp.cli.options import (
    DEFAULT_OUT,
    METHODS_HELP,
    ColoursOption,
    OutOption,
    PaletteName,
    PhotoArgument,
    PictureFormat,
    PictureOption,
    QuietOption,
    RatherThanOption,
    SitesOption,
    SmoothOption,
    TargetOption,
    announced,
    given_options,
    open_photo,
    report_errors,
    stdout,
    takes_model,
    write_result,
)

if TYPE_CHECKING:
    from dmbp.workflows.prediction import ModelSpec


@takes_model
def sanity(
    photo: PhotoArgument,
    spec: "ModelSpec",
    methods: Annotated[
        str | None,
        typer.Option(
            help=f"{METHODS_HELP} Default: dmbp,gradient,gradcam,guided_gradcam,guided_backprop."
        ),
    ] = None,
    draws: Annotated[int, typer.Option(help="How many random last layers to try.")] = 5,
    smooth: SmoothOption = None,
    sites: SitesOption = None,
    target: TargetOption = None,
    rather_than: RatherThanOption = None,
    out: OutOption = DEFAULT_OUT,
    picture: PictureOption = PictureFormat.png,
    colours: ColoursOption = PaletteName.red_blue,
    quiet: QuietOption = False,
) -> None:
    """Check that maps depend on what was learned.

    The model's last layer is replaced with a random one. A map that stays the same cannot show
    what the model has learned. Writes a figure of the maps before and after, and a JSON file with
    their rank correlations.
    """
    from dmbp.attribution import parse_method_names
    from dmbp.attribution.settings import with_dmbp_settings
    from dmbp.workflows.api import sanity as check_sanity
    from dmbp.workflows.explain import result_stem
    from dmbp.workflows.sanity import DEFAULT_METHODS

    with report_errors():
        names = parse_method_names(methods or DEFAULT_METHODS)
        check = check_sanity(
            open_photo(photo, target, out=out),
            announced(spec, quiet),
            target or None,
            methods=names,
            draws=draws,
            settings=with_dmbp_settings({}, names, given_options(smooth=smooth, sites=sites)),
            rather_than=rather_than or [],
            name=str(photo),
            console=None if quiet else stdout,
        )
        write_result(check, out / result_stem(photo), picture, colours, quiet)
