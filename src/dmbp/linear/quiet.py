"""Other people's remarks, kept from the terminal: an error reaches the user as one sentence.

Where `torch.export` fails it logs a warning and prints the whole graph to the standard error.
"""

import io
import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr

from dmbp.linear.whole_process import whole_process


@contextmanager
def without_log() -> Generator[None]:
    """Nothing is logged but errors."""
    with whole_process:
        before = logging.root.manager.disable
        logging.disable(max(before, logging.WARNING))
        try:
            yield
        finally:
            logging.disable(before)


@contextmanager
def quietly() -> Generator[None]:
    """Neither a log, nor a warning, nor anything printed to the standard error."""
    with without_log(), warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
