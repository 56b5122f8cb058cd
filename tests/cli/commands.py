"""Commands, run in the tests' own process."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from dmbp.cli import app

NETWORKS = "tests.cli.networks"


def run(*arguments: str) -> Result:
    """Run `dmbp` with these arguments."""
    return CliRunner().invoke(app, list(arguments))


def run_explain(*arguments: str, model: str = f"{NETWORKS}:good") -> Result:
    """Run `dmbp explain` for three iterations."""
    return run("explain", "--model", model, "--iterations", "3", *arguments)


def read_record(path: str = "dmbp-out/photo.json") -> Any:
    """Return the content of a JSON file."""
    return json.loads(Path(path).read_text())
