"""Launching Triton kernels, and compiling them ahead of time, several at once.

Triton compiles a kernel when it is first launched with arguments of new types, and then the
kernel's launcher: about half a second each, one after the other. Inside `compile_only`, `launch`
does not launch anything but compiles in a thread pool, either all kernels before it goes on or in
the background; a later launch waits for its own kernel.

Up to version 3.6, Triton's code generator also sets and restores the process's warning filters at
every node that it compiles. All threads share these filters. If two compilations overlap, the last
to end restores the filters that it saw at its start, which may be those that the other had set: a
user's warning may be lost, or the process's filters changed for good. `protect_warning_filters`
prevents this. The warnings that Triton means to ignore no longer occur: they concerned methods that
it has since replaced.
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
    """Stands in for the `warnings` module in code that may warn but must not change filters."""

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
"""Background compilations, finished or not, whose kernels have not been launched since."""

_compilers = ThreadPoolExecutor(max_workers=8, thread_name_prefix="dmbp-compile")
_background_compilers = ThreadPoolExecutor(max_workers=3, thread_name_prefix="dmbp-compile-ahead")
"""Few threads, because each competes with the main thread for the interpreter lock."""


class _ThreadState(threading.local):
    """The compilations that a thread started inside `compile_only`, or None outside it."""

    compilations: "dict[Any, Future[Any]] | None" = None
    compilers = _compilers


thread_state = _ThreadState()

FP_FUSION = {"enable_fp_fusion": True}
"""Fuses a product and a sum and rounds them once, whatever a Triton version's default is."""


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **settings: Any) -> None:
    """Launch a kernel on a grid, or only compile it inside `compile_only`."""
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
    """Return what Triton compiles a kernel for, without the arguments that the kernel excludes."""
    parameters = getattr(kernel, "params", [])  # interpreted kernels lack the attribute
    ignored = {p.num for p in parameters if p.do_not_specialize}
    return tuple(None if k in ignored else _argument_kind(a) for k, a in enumerate(arguments))


def _argument_kind(argument: Any) -> Any:
    """Return a tensor's dtype and alignment, an integer's divisibility, or another's type."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return argument % 16 == 0, argument == 1
    return type(argument)


@contextmanager
def compile_only(*, background: bool = False) -> Generator[None]:
    """Compile the kernels launched inside instead of running them, and wait for them on exit.

    With `background`, do not wait on exit; later launches wait for their own kernel.
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


H200_MULTIPROCESSORS = 132
"""The number of multiprocessors assumed if kernels are interpreted on a CPU."""


def multiprocessors(device: torch.device) -> int:
    """Return how many multiprocessors a GPU has, each of which runs programs of its own."""
    if device.type != "cuda":
        return H200_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count
