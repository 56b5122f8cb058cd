"""Triton's code generator, kept from the warning filters of the process.

Up to version 3.6 it sets them and puts them back at every node it compiles. Filters belong to all
threads: of two that overlap, the one that ends last puts back what it found, which is what the
other had set. A warning to the user may then be lost, or everybody's filters changed for good. The
warnings it means to ignore are not met any more: they were of methods it has replaced since.

Launching kernels, and compiling them beforehand, several at a time.

Triton compiles a kernel when it first meets the kinds of arguments it is given, and the code that
launches it when it is first run: half a second each, one after the other. In a rehearsal nothing is
launched: what would be is compiled, all at once, or while something else is done.
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


_ahead: "dict[Any, Future[Any]]" = {}
"""What is being compiled, or was, and has not been launched since."""

_compilers = ThreadPoolExecutor(max_workers=8, thread_name_prefix="dmbp-compile")
_beside = ThreadPoolExecutor(max_workers=3, thread_name_prefix="dmbp-compile-ahead")
"""Few: each takes the interpreter from what is done meanwhile."""


class _Thread(threading.local):
    """Of a thread: what it has asked for in a rehearsal, if it is in one. Others launch."""

    rehearsal: "dict[Any, Future[Any]] | None" = None
    compilers = _compilers


thread = _Thread()

FUSED = {"enable_fp_fusion": True}
"""A product and a sum are rounded once, whatever a version of Triton does where nothing is said."""


def launch(kernel: Any, programs: tuple[int, ...], *arguments: Any, **settings: Any) -> None:
    """Run a kernel, or in a rehearsal see that it is compiled."""
    rehearsal = thread.rehearsal
    settings = FUSED | settings
    if rehearsal is None and not _ahead:
        kernel[programs](*arguments, **settings)
        return
    key = (kernel.__name__, _kinds(kernel, arguments), tuple(settings.items()))
    begun = _ahead.pop(key, None)
    if rehearsal is None:
        if begun is not None:
            wait([begun])  # what failed will say so when it is launched
        kernel[programs](*arguments, **settings)
    elif begun is not None:
        rehearsal[key] = begun
    elif key not in rehearsal:
        device = torch.cuda.current_device() if torch.cuda.is_available() else None
        rehearsal[key] = thread.compilers.submit(
            _compile, device, kernel, programs, arguments=arguments, settings=settings
        )


def _compile(
    device: int | None, kernel: Any, programs: Any, *, arguments: Any, settings: Any
) -> None:
    if device is not None:
        torch.cuda.set_device(device)  # of this thread
    leave_filters(importlib.import_module("triton.compiler.code_generator"))
    compiled = kernel.warmup(*arguments, grid=programs, **settings)
    _ = compiled.run  # its launcher, which is made when it is asked for


def _kinds(kernel: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """What Triton compiles for; which numbers do not count, the kernel says."""
    parameters = getattr(kernel, "params", [])  # an interpreted kernel has none
    ignored = {p.num for p in parameters if p.do_not_specialize}
    return tuple(None if k in ignored else _kind(a) for k, a in enumerate(arguments))


def _kind(argument: Any) -> Any:
    """A tensor's type and alignment, the divisibility of a number."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return argument % 16 == 0, argument == 1
    return type(argument)


@contextmanager
def rehearsing(*, ahead: bool = False) -> Generator[None]:
    """Launch nothing inside; at the end everything that was asked for is compiled.

    `ahead`: or being compiled; what is launched then waits for its own kernel.
    """
    thread.rehearsal = {}
    thread.compilers = _beside if ahead else _compilers
    try:
        yield
        if ahead:
            _ahead.update(thread.rehearsal)
        else:
            wait(thread.rehearsal.values())
    finally:
        thread.rehearsal = None
