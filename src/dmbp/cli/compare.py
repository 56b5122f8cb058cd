"""`dmbp compare`: compare methods side by side on one photo."""

from typing import Annotated

import typer

from dmbp.cli.options import (
    DEFAULT_OUT,
    METHODS_HELP,
    ChannelsOption,
    ClassesOption,
    ColoursOption,
    DeviceOption,
    FitOption,
    HoldOption,
    InputNameOption,
    LayoutOption,
    MeanOption,
    ModelOption,
    OutOption,
    OutputNameOption,
    PaletteName,
    PhotoArgument,
    PictureFormat,
    PictureOption,
    QuietOption,
    RatherThanOption,
    ScaleOption,
    SitesOption,
    SizeOption,
    SmoothOption,
    StdOption,
    TargetOption,
    TrustOption,
    WeightsOption,
    given_options,
    input_settings,
    model_ends,
    predict_photo,
    report_errors,
    stdout,
    write_result,
)


def compare(
    photo: PhotoArgument,
    methods: Annotated[str, typer.Option(help=METHODS_HELP)] = "all",
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
    model: ModelOption = None,
    weights: WeightsOption = None,
    classes: ClassesOption = None,
    trust_model_file: TrustOption = False,
    size: SizeOption = None,
    fit: FitOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    scale: ScaleOption = None,
    channels: ChannelsOption = None,
    layout: LayoutOption = None,
    hold: HoldOption = None,
    input_name: InputNameOption = None,
    output_name: OutputNameOption = None,
    target: TargetOption = None,
    rather_than: RatherThanOption = None,
    device: DeviceOption = "cpu",
    out: OutOption = DEFAULT_OUT,
    picture: PictureOption = PictureFormat.png,
    colours: ColoursOption = PaletteName.red_blue,
    quiet: QuietOption = False,
) -> None:
    """Compare methods on one photo.

    Writes a figure with the maps of all methods side by side, a figure of their insertion curves
    (how fast the class is recognised again as each method's strongest pixels are put back into a
    blurred photo), and a JSON file with the scores.
    """
    from dmbp.attribution import parse_method_names
    from dmbp.attribution.settings import parse_settings, with_dmbp_settings
    from dmbp.workflows.compare import compare as compare_methods
    from dmbp.workflows.explain import result_stem
    from dmbp.workflows.prediction import ModelSpec

    console = None if quiet else stdout
    with report_errors():
        names = parse_method_names(methods)
        freezing = given_options(smooth=smooth, sites=sites)
        settings = with_dmbp_settings(parse_settings(setting or [], names), names, freezing)
        inputs = input_settings(
            size=size,
            fit=fit,
            mean=mean,
            std=std,
            scale=scale,
            channels=channels,
            layout=layout,
        )
        spec = ModelSpec(
            model,
            weights,
            classes,
            device,
            trust_model_file=trust_model_file,
            inputs=inputs,
            ends=model_ends(input_name, output_name, hold),
        )
        prediction = predict_photo(
            photo,
            spec,
            target,
            rather_than,
            out=out,
            quiet=quiet,
        )
        comparison = compare_methods(prediction, names, settings=settings, console=console)
        write_result(comparison, out / result_stem(photo), picture, colours, quiet)
