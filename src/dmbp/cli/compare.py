"""`dmbp compare`: compare methods side by side on one photo."""

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
def compare(
    photo: PhotoArgument,
    spec: "ModelSpec",
    methods: Annotated[
        str,
        typer.Option(help=f"{METHODS_HELP} default is the paper's methods and a few more."),
    ] = "default",
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="METHOD.NAME=VALUE",
            help="A setting of a method, such as rise.masks=1000; may be repeated.",
        ),
    ] = None,
    smooth: SmoothOption = None,
    sites: SitesOption = None,
    target: TargetOption = None,
    rather_than: RatherThanOption = None,
    out: OutOption = DEFAULT_OUT,
    picture: PictureOption = PictureFormat.png,
    colours: ColoursOption = PaletteName.red_blue,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Take fewer masks for RISE, and leave out the two slowest methods."
        ),
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Compare methods on one photo.

    Writes a figure with the maps of all methods side by side, a figure of their insertion curves
    (how fast the class is recognised again as each method's strongest pixels are put back into a
    blurred photo), and a JSON file with the scores. Fast methods run first; before one that takes
    long, the figures are written with the methods that are done.
    """
    from dmbp.attribution import parse_method_names
    from dmbp.attribution.settings import MethodSettings, parse_settings, with_dmbp_settings
    from dmbp.workflows.api import compare as compare_methods
    from dmbp.workflows.compare import Comparison, make_quick
    from dmbp.workflows.explain import result_stem

    def write(comparison: Comparison, note: str = "") -> None:
        write_result(comparison, out / result_stem(photo), picture, colours, quiet, note=note)

    def write_so_far(comparison: Comparison) -> None:
        write(comparison, note=f", {len(comparison.maps)} methods so far")

    with report_errors():
        names = parse_method_names(methods)
        freezing = given_options(smooth=smooth, sites=sites)
        settings: MethodSettings = parse_settings(setting or [], names)
        if quick:
            names, settings, change = make_quick(names, settings, are_all=methods == "all")
            if not quiet:
                stdout.print(change)
        comparison = compare_methods(
            open_photo(photo, target, out=out),
            announced(spec, quiet),
            target or None,
            methods=names,
            settings=with_dmbp_settings(settings, names, freezing),
            rather_than=rather_than or [],
            name=str(photo),
            console=None if quiet else stdout,
            before_slow=write_so_far,
        )
        write(comparison)
