"""Threads that compile leave the process's warning filters alone."""

import importlib
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from dmbp.engine.gpu.triton.launch import protect_warning_filters


def code_generator() -> Any:
    """As much of Triton's module as counts."""
    return SimpleNamespace(warnings=warnings)


def test_filters_stay_when_compiling_ends_after_who_began_before() -> None:
    module, before = code_generator(), list(warnings.filters)
    protect_warning_filters(module)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        compiling = module.warnings.catch_warnings()
        compiling.__enter__()
        module.warnings.simplefilter("ignore", UserWarning)
        warnings.warn("of the user", stacklevel=1)
    compiling.__exit__(None, None, None)
    assert [str(warning.message) for warning in seen] == ["of the user"]
    assert list(warnings.filters) == before


def test_it_may_still_warn() -> None:
    module = code_generator()
    protect_warning_filters(module)
    protect_warning_filters(module)
    with pytest.warns(UserWarning, match="from Triton"):
        module.warnings.warn("from Triton", stacklevel=1)


def test_tritons_own_generator_does() -> None:
    pytest.importorskip("triton")
    module = importlib.import_module("triton.compiler.code_generator")
    protect_warning_filters(module)
    assert getattr(module, "warnings", None) is not warnings
