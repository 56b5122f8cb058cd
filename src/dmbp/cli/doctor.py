"""`dmbp doctor`: check whether a model can be explained, how exactly, and at what cost."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from dmbp.cli.options import (
    MODEL_HELP,
    SitesOption,
    SmoothOption,
    given_options,
    report_errors,
    stdout,
    takes_model,
)

if TYPE_CHECKING:
    from dmbp.workflows.prediction import ModelSpec


@takes_model
def doctor(
    model: Annotated[
        str,
        typer.Argument(
            help=f"The model: {MODEL_HELP} An architecture without --weights gets random weights."
        ),
    ],
    spec: "ModelSpec",
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
    from dmbp.workflows.api import doctor as diagnose

    with report_errors():
        spec = replace(spec, model=model, untrained=True)
        diagnosis = diagnose(spec, **given_options(smooth=smooth, sites=sites))
    if as_json:
        stdout.print(diagnosis.json())
    else:
        diagnosis.show(stdout, all_sites=all_sites)
    if diagnosis.examination.refusal is not None:
        raise typer.Exit(2)
