"""`python -m dmbp`: the command line."""

from dmbp.cli import app

if __name__ == "__main__":
    app(prog_name="dmbp")
