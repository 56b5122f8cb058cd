"""The terminal as commands use it: where to print, and how errors are said."""

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from dmbp.errors import DMBPError, sentence

errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)
output = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)


@contextmanager
def one_sentence(*, interrupted: str = "interrupted") -> Generator[None]:
    """Turn an error the user can put right into one sentence and exit code 2; warnings too.

    `interrupted` is said where the user interrupts; the exit code is then a shell's, 130.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.simplefilter("ignore", FutureWarning)  # what libraries say to one another
            warnings.showwarning = _note
            yield
    except DMBPError as error:
        errors.print(Text("dmbp: ", "red") + Text(sentence(error)))
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        errors.print(Text("dmbp: ", "red") + Text(interrupted))
        raise typer.Exit(130) from None


def _note(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as a line of its own, without the place in the code that it came from."""
    errors.print(Text("note: ", "yellow") + Text(" ".join(str(message).split())))
