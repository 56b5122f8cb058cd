"""`dmbp doctor`: check whether a model can be explained, how exactly, and at what cost."""

from typing import Annotated

import typer

from dmbp.cli.options import (
    MODEL_HELP,
    ChannelsOption,
    ClassesOption,
    DeviceOption,
    FitOption,
    HoldOption,
    InputNameOption,
    LayoutOption,
    MeanOption,
    OutputNameOption,
    ScaleOption,
    SitesOption,
    SizeOption,
    SmoothOption,
    StdOption,
    TrustOption,
    WeightsOption,
    given_options,
    input_settings,
    model_ends,
    report_errors,
    stdout,
)


def doctor(
    model: Annotated[
        str,
        typer.Argument(
            help=f"The model: {MODEL_HELP} An architecture without --weights gets random weights."
        ),
    ],
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
    device: DeviceOption = "cpu",
    smooth: SmoothOption = None,
    sites: SitesOption = None,
    all_sites: Annotated[
        bool, typer.Option("--all-sites", help="List every activation that has a mask.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check whether a model can be explained.

    Prints how photos are prepared, where each of these settings comes from, and what the model says
    about a sample photo of a cat, so that you see if a setting is wrong. Then it runs a few
    iterations on an image of noise, and prints which operations were made linear, how exactly the
    model is reproduced, and what an explanation costs in time and memory. For an unsupported model
    it lists each blocking operation, its module and a fix; the exit code is then 2.
    """
    from dmbp.workflows.doctor import diagnose
    from dmbp.workflows.prediction import ModelSpec

    with report_errors():
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
            untrained=True,
            trust_model_file=trust_model_file,
            inputs=inputs,
            ends=model_ends(input_name, output_name, hold),
        )
        diagnosis = diagnose(spec, freezing=given_options(smooth=smooth, sites=sites))
    if as_json:
        stdout.print(diagnosis.json())
    else:
        diagnosis.show(stdout, all_sites=all_sites)
    if diagnosis.examination.refusal is not None:
        raise typer.Exit(2)
