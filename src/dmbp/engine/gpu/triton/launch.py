"""Launching Triton kernels, and compiling them ahead, several at a time.

Triton compiles a kernel when it first meets the types of its arguments, and its launcher when it is
first launched: about half a second each, one after the other. Inside `compile_only`, `launch` does
not launch anything but compiles in a thread pool, all kernels at once or in the background while
other work goes on; a later launch waits for its own kernel.

Up to version 3.6, Triton's code generator also sets and restores the process's warning filters at
every node that it compiles. Filters are shared by all threads: of two that overlap, the one that
ends last restores what it found, which is what the other had set. A user's warning may then be
lost, or everybody's filters changed for good. `protect_warning_filters` keeps it from doing so. The
warnings it means to ignore no longer occur: they were about methods that it has replaced since.
"""

import importlib
import threading
import warnings
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor


class _WarningsWithoutFilters:
    """The `warnings` module for code that may warn, but must not change the filters."""

    def __getattr__(self, name: str) -> Any:
        return getattr(warnings, name)

    def catch_warnings(self) -> AbstractContextManager[None]:
        """Return a context that neither sets nor restores anything."""
        return nullcontext()

    def simplefilter(self, *_: Any) -> None:
        """Do nothing."""


def protect_warning_filters(module: Any) -> None:
    """Keep a module from changing warning filters from now on."""
    if getattr(module, "warnings", None) is warnings:
        module.warnings = _WarningsWithoutFilters()


_pending: "dict[Any, Future[Any]]" = {}
"""Kernels compiled in the background, or being compiled, that have not been launched since."""

_compilers = ThreadPoolExecutor(max_workers=8, thread_name_prefix="dmbp-compile")
_background_compilers = ThreadPoolExecutor(max_workers=3, thread_name_prefix="dmbp-compile-ahead")
"""Few threads, because each takes the interpreter lock from the work that goes on."""


class _ThreadState(threading.local):
    """Per thread: the compilations started inside `compile_only`, or None outside it."""

    compilations: "dict[Any, Future[Any]] | None" = None
    compilers = _compilers


thread_state = _ThreadState()

FP_FUSION = {"enable_fp_fusion": True}
"""Products and sums are fused and rounded once, whatever a Triton version's default is."""


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **settings: Any) -> None:
    """Launch a kernel on a grid, or inside `compile_only` see that it is compiled."""
    compilations = thread_state.compilations
    settings = FP_FUSION | settings
    if compilations is None and not _pending:
        kernel[grid](*arguments, **settings)
        return
    key = (kernel.__name__, _specialization(kernel, arguments), tuple(settings.items()))
    pending = _pending.pop(key, None)
    if compilations is None:
        if pending is not None:
            wait([pending])  # a failed compilation is reported by the launch below
        kernel[grid](*arguments, **settings)
    elif pending is not None:
        compilations[key] = pending
    elif key not in compilations:
        device = torch.cuda.current_device() if torch.cuda.is_available() else None
        compilations[key] = thread_state.compilers.submit(
            _compile, device, kernel, grid, arguments=arguments, settings=settings
        )


def _compile(device: int | None, kernel: Any, grid: Any, *, arguments: Any, settings: Any) -> None:
    """Compile a kernel and its launcher for these arguments, in a thread of the pool."""
    if device is not None:
        torch.cuda.set_device(device)  # for this thread
    protect_warning_filters(importlib.import_module("triton.compiler.code_generator"))
    compiled = kernel.warmup(*arguments, grid=grid, **settings)
    _ = compiled.run  # compiles the launcher on first access


def _specialization(kernel: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what Triton compiles a kernel for; some numbers are excluded by the kernel itself."""
    parameters = getattr(kernel, "params", [])  # interpreted kernels have none
    ignored = {p.num for p in parameters if p.do_not_specialize}
    return tuple(None if k in ignored else _argument_kind(a) for k, a in enumerate(arguments))


def _argument_kind(argument: Any) -> Any:
    """Return a tensor's dtype and alignment, or a number's divisibility."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return argument % 16 == 0, argument == 1
    return type(argument)


@contextmanager
def compile_only(*, background: bool = False) -> Generator[None]:
    """Launch nothing inside; on exit, every kernel that was to be launched has been compiled.

    With `background`, it may still be compiling on exit, and later launches wait for their own
    kernel.
    """
    thread_state.compilations = {}
    thread_state.compilers = _background_compilers if background else _compilers
    try:
        yield
        if background:
            _pending.update(thread_state.compilations)
        else:
            wait(thread_state.compilations.values())
    finally:
        thread_state.compilations = None
