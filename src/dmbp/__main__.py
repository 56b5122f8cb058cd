"""`python -m dmbp`: the command line."""

from dmbp.cli import app

app(prog_name="dmbp")
