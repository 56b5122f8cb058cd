"""`dmbp sanity`: check that maps change when the model's last layer is re-initialised."""

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


def sanity(
    photo: PhotoArgument,
    methods: Annotated[
        str | None,
        typer.Option(
            help=f"{METHODS_HELP} Default: dmbp,gradient,gradcam,guided_gradcam,guided_backprop."
        ),
    ] = None,
    draws: Annotated[int, typer.Option(help="How many random last layers to try.")] = 5,
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
    """Check that maps depend on what was learned.

    The model's last layer is replaced with a random one. A map that stays the same cannot show
    what the model has learned. Writes a figure of the maps before and after, and a JSON file with
    their rank correlations.
    """
    from dmbp.attribution import parse_method_names
    from dmbp.attribution.settings import with_dmbp_settings
    from dmbp.workflows.explain import result_stem
    from dmbp.workflows.prediction import ModelSpec
    from dmbp.workflows.sanity import DEFAULT_METHODS, check_sanity

    console = None if quiet else stdout
    with report_errors():
        names = parse_method_names(methods or DEFAULT_METHODS)
        settings = with_dmbp_settings({}, names, given_options(smooth=smooth, sites=sites))
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
        check = check_sanity(prediction, names, settings=settings, draws=draws, console=console)
        write_result(check, out / result_stem(photo), picture, colours, quiet)
