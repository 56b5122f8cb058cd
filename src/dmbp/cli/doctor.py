"""`dmbp doctor`: whether a model can be explained, how exactly, and at what cost."""

from typing import Annotated

import typer

from dmbp.cli.options import Device, Sites, SmoothOption, Weights, given, report_errors, stdout


def doctor(
    model: Annotated[str, typer.Argument(help="As for --model of the other commands.")],
    weights: Weights = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Side of the image. Default: the model's.")
    ] = None,
    device: Device = "cpu",
    smooth: SmoothOption = None,
    sites: Sites = None,
    all_sites: Annotated[bool, typer.Option("--all-sites", help="List every site.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Can this model be explained? What is captured, how exactly, and what it costs."""
    from dmbp.workflows.doctor import diagnose
    from dmbp.workflows.prediction import ModelChoice

    with report_errors():
        choice = ModelChoice(model, weights, None, device, untrained=True)
        diagnosis = diagnose(choice, size=size, frozen=given(smooth=smooth, sites=sites))
    if as_json:
        stdout.print(diagnosis.json())
    else:
        diagnosis.show(stdout, all_sites=all_sites)
    if diagnosis.found.refusal is not None:
        raise typer.Exit(2)
