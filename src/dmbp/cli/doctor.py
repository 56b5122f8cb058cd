"""`dmbp doctor`: check whether a model can be explained, how exactly, and at what cost."""

from typing import Annotated

import typer

from dmbp.cli.options import (
    DeviceOption,
    SitesOption,
    SmoothOption,
    TrustOption,
    WeightsOption,
    given_options,
    report_errors,
    stdout,
)


def doctor(
    model: Annotated[
        str,
        typer.Argument(
            help="A name from `dmbp models`, timm:NAME, a .pt2 or .onnx file, or "
            "package.module:factory for your own. An architecture without --weights gets random "
            "weights."
        ),
    ],
    weights: WeightsOption = None,
    trust_model_file: TrustOption = False,
    size: Annotated[
        int | None,
        typer.Option(
            min=1, max=1024, help="Side of the test image in pixels. Default: the model's own."
        ),
    ] = None,
    device: DeviceOption = "cpu",
    smooth: SmoothOption = None,
    sites: SitesOption = None,
    all_sites: Annotated[
        bool, typer.Option("--all-sites", help="List every activation that has a mask.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check whether a model can be explained.

    Runs a few iterations on an image of noise, and prints which operations were made linear, how
    exactly the model is reproduced, and what an explanation costs in time and memory. For an
    unsupported model it lists each blocking operation, its module and a fix; the exit code is
    then 2.
    """
    from dmbp.workflows.doctor import diagnose
    from dmbp.workflows.prediction import ModelSpec

    with report_errors():
        spec = ModelSpec(
            model, weights, None, device, untrained=True, trust_model_file=trust_model_file
        )
        freezing = given_options(smooth=smooth, sites=sites)
        diagnosis = diagnose(spec, size=size, freezing=freezing)
    if as_json:
        stdout.print(diagnosis.json())
    else:
        diagnosis.show(stdout, all_sites=all_sites)
    if diagnosis.examination.refusal is not None:
        raise typer.Exit(2)
