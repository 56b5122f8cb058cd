"""Launching kernels and compiling them in advance, also from several threads."""

import importlib
import warnings
from collections.abc import Callable
from threading import Event, Thread, Timer
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

from dmbp.engine.gpu.triton.launch import (
    FP_FUSION,
    compile_only,
    launch,
    protect_warning_filters,
)


class CountingKernel:
    """Counts its launches."""

    launched = 0

    def __init__(self, name: str = "kernel") -> None:
        self.__name__ = name

    def __getitem__(self, _: tuple[int, ...]) -> Callable[..., None]:
        return self._launch

    def _launch(self, **settings: object) -> None:
        assert settings == FP_FUSION
        self.launched += 1


class SlowKernel(CountingKernel):
    """Finishes compiling when the test allows it."""

    run = None
    compiled = 0

    def __init__(self) -> None:
        super().__init__("slow kernel")
        self.may_finish = Event()

    def warmup(self, *, grid: tuple[int, ...], **_: object) -> "SlowKernel":
        assert grid == (1,)
        assert self.may_finish.wait(timeout=60)
        self.compiled += 1
        return self

    def _launch(self, **settings: object) -> None:
        assert self.compiled
        super()._launch(**settings)


def test_a_launch_waits_for_its_own_kernel_only() -> None:
    slow, other = SlowKernel(), CountingKernel()
    with compile_only(background=True):
        launch(slow, (1,))
    launch(other, (1,))
    assert (other.launched, slow.compiled) == (1, 0)
    with compile_only(background=True):
        launch(slow, (1,))  # is already being compiled
    Timer(0.2, slow.may_finish.set).start()
    launch(slow, (1,))
    assert (slow.launched, slow.compiled) == (1, 1)
    with compile_only():
        launch(slow, (1,))
    assert slow.compiled == 2  # a compilation is forgotten once its kernel was launched


def test_compile_only_waits_for_background_compilations() -> None:
    slow = SlowKernel()
    with compile_only(background=True):
        launch(slow, (1,))
    Timer(0.2, slow.may_finish.set).start()
    with compile_only():
        launch(slow, (1,))
    assert slow.compiled == 1


def test_compile_only_affects_one_thread() -> None:
    compiled, launched = CountingKernel(), CountingKernel()
    with compile_only():
        launch(compiled, (1,))
        other = Thread(target=launch, args=(launched, (1,)))
        other.start()
        other.join()
    assert (compiled.launched, launched.launched) == (0, 1)
    launch(compiled, (1,))
    assert compiled.launched == 1


def code_generator() -> Any:
    """Return a module that imports `warnings`, as Triton's code generator does."""
    return SimpleNamespace(warnings=warnings)


def test_compiling_leaves_the_warning_filters_of_other_threads_alone() -> None:
    module, before = code_generator(), list(warnings.filters)
    protect_warning_filters(module)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        compiling = module.warnings.catch_warnings()
        compiling.__enter__()
        module.warnings.simplefilter("ignore", UserWarning)
        warnings.warn("from the user", stacklevel=1)
    compiling.__exit__(None, None, None)
    assert [str(warning.message) for warning in seen] == ["from the user"]
    assert list(warnings.filters) == before


def test_the_code_generator_may_still_warn() -> None:
    module = code_generator()
    protect_warning_filters(module)
    protect_warning_filters(module)
    with pytest.warns(UserWarning, match="from Triton"):
        module.warnings.warn("from Triton", stacklevel=1)


def test_tritons_own_code_generator_is_protected() -> None:
    module = importlib.import_module("triton.compiler.code_generator")
    protect_warning_filters(module)
    assert getattr(module, "warnings", None) is not warnings
