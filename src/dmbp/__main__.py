"""Run the command line as `python -m dmbp`."""

from dmbp.cli import app

if __name__ == "__main__":
    app(prog_name="dmbp")
