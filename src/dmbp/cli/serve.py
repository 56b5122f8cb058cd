"""`dmbp serve`: a page on which one drops a photo and sees what the network saw."""

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from dmbp.cli.options import (
    Preset,
    QuietOption,
    given_options,
    print_default_model,
    report_errors,
    stdout,
    takes_model,
)

if TYPE_CHECKING:
    from dmbp.workflows.prediction import ModelSpec

TOKEN = "DMBP_TOKEN"
"""The environment variable with a token of one's own."""


@takes_model
def serve(
    spec: "ModelSpec",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0 takes any free one.")
    ] = 8765,
    host: Annotated[
        str,
        typer.Option(
            help="The address to bind. Any other than this machine's own needs the token that is "
            f"printed, or that of the environment variable {TOKEN}."
        ),
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Another name that the page is opened under, such as that of a proxy; may be "
            "repeated.",
        ),
    ] = None,
    preset: Annotated[Preset, typer.Option(help="DMBP's settings, as for `dmbp explain`.")] = (
        Preset.tested
    ),
    iterations: Annotated[
        int | None, typer.Option(help="Iterations of learning masks, as for `dmbp explain`.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="The most seconds that one request is computed for.")
    ] = 300,
    waiting: Annotated[
        int, typer.Option(min=1, max=1000, help="The most requests that wait in the queue.")
    ] = 32,
    quiet: QuietOption = False,
) -> None:
    """Open a page for photos: drop one, and see what the network saw.

    It runs on this machine, needs no network, and writes nothing to disk.
    """
    with report_errors():
        _check_installed()
        from dmbp.decompose import resolve_settings
        from dmbp.web.app import PageOptions
        from dmbp.web.server import is_loopback, names_of, new_token
        from dmbp.web.server import serve as serve_page

        print_default_model(spec.model, quiet)
        settings = {"preset": preset.value, **given_options(iterations=iterations)}
        resolve_settings(**settings)
        token = os.environ.get(TOKEN) or (None if is_loopback(host) else new_token())
        hosts = (*names_of(host), *(allow_host or ()))
        options = PageOptions(spec, settings, hosts, token, waiting, timeout)
        serve_page(
            options,
            host=host,
            port=port,
            on_ready=lambda address: (
                None if quiet else stdout.print(f"the page is at {address} (Ctrl-C ends it)")
            ),
        )


def _check_installed() -> None:
    from dmbp.errors import InputError

    if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise InputError("the page needs Starlette and uvicorn: pip install 'dmbp[web]'")
