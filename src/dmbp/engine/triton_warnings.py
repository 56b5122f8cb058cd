"""Triton's code generator, kept from the warning filters of the process.

Up to version 3.6 it sets them and puts them back at every node it compiles. Filters belong to all
threads: of two that overlap, the one that ends last puts back what it found, which is what the
other had set. A warning to the user may then be lost, or everybody's filters changed for good. The
warnings it means to ignore are not met any more: they were of methods it has replaced since.
"""

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any


class _LeavesFilters:
    """`warnings` for those who may warn, but not say which warnings are seen."""

    def __getattr__(self, name: str) -> Any:
        return getattr(warnings, name)

    def catch_warnings(self) -> AbstractContextManager[None]:
        """Nothing is set inside, and nothing put back."""
        return nullcontext()

    def simplefilter(self, *_: Any) -> None:
        """Nothing."""


def leave_filters(module: Any) -> None:
    """See that a module changes no filters from now on."""
    if getattr(module, "warnings", None) is warnings:
        module.warnings = _LeavesFilters()
