"""Unwraps models, and puts them into evaluation mode."""

import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_map

from dmbp.errors import ModelError
from dmbp.process import PROCESS_LOCK, Fork

Model = nn.Module | ExportedProgram


def unwrapped(model: Any) -> Model:
    """Return the model inside DataParallel or `torch.compile`, which cannot be exported.

    A program that was exported for a single image is wrapped so that it takes any number of them.

    Raises:
        ModelError: If `model` is not a module or an exported program.
    """
    inner = model
    while (wrapped := _wrapped_model(inner)) is not None:
        inner = wrapped
    if not isinstance(inner, nn.Module | ExportedProgram):
        raise ModelError(f"a model is an nn.Module or an ExportedProgram, not {inner!r:.60}")
    if inner is not model:
        warnings.warn(
            f"the model is explained without its {type(model).__name__} wrapper: the same network "
            "on one device, not compiled",
            stacklevel=levels_to_caller(),
        )
    return _for_any_batch(inner) if isinstance(inner, ExportedProgram) else inner


def levels_to_caller() -> int:
    """Return the `stacklevel` of the first frame outside this package."""
    frame, levels = sys._getframe(1), 1
    ours = ("dmbp.", "contextlib")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(ours):
        frame, levels = frame.f_back, levels + 1
    return levels


def _for_any_batch(program: ExportedProgram) -> Model:
    """Wrap a program that was exported for one image; return others unchanged."""
    explained = list(program.graph_signature.user_inputs)[:1]
    sizes = [n.meta["val"].shape[0] for n in program.graph.nodes if n.name in explained]
    return OneAtATime(program.module()) if sizes == [1] else program


def _wrapped_model(model: Any) -> Any:
    """Return the model inside one wrapper, or None if there is no wrapper."""
    if isinstance(model, nn.parallel.DataParallel | nn.parallel.DistributedDataParallel):
        return model.module
    return getattr(model, "_orig_mod", None)


@contextmanager
def evaluating(model: Model, *, stacklevel: int | None = 4) -> Generator[None]:
    """Put every module of a model into evaluation mode, and restore its mode on exit.

    If the model is in training mode, a warning is issued with this `stacklevel`; None is the level
    of the first frame outside this package.
    """
    with PROCESS_LOCK:
        Fork.use_own_threads()
        modules = list(model.modules()) if isinstance(model, nn.Module) else []
        # A frozen TorchScript module has no mode.
        training = [module for module in modules if getattr(module, "training", False)]
        if training:
            warnings.warn(
                "the model is in training mode; it is explained in evaluation mode, as after "
                "model.eval()",
                stacklevel=levels_to_caller() if stacklevel is None else stacklevel,
            )
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for module in training:
                module.training = True


@dataclass(frozen=True)
class ProgramFile:
    """The content of a file that torch.export or TorchScript writes: a program in a pickle."""

    content: bytes
    is_script: bool


def packed(model: Model) -> Model | ProgramFile:
    """Return a program as the content of its file; other models can be pickled themselves."""
    file = BytesIO()
    if isinstance(model, ExportedProgram):
        torch.export.save(model, file)
    elif isinstance(model, torch.jit.ScriptModule):
        with _without_deprecations():
            torch.jit.save(model, file)
    else:
        return model
    return ProgramFile(file.getvalue(), not isinstance(model, ExportedProgram))


def unpacked(model: Model | ProgramFile) -> Model:
    """Return the program in the content of its file, or a model itself."""
    if not isinstance(model, ProgramFile):
        return model
    file = BytesIO(model.content)
    with _without_deprecations():
        return torch.jit.load(file) if model.is_script else torch.export.load(file)


@contextmanager
def _without_deprecations() -> Generator[None]:
    """Leave out that TorchScript is deprecated: the model is the user's."""
    with PROCESS_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


class OneAtATime(nn.Module):
    """Runs a model that takes batches of one size on one image after the other.

    Programs exported without a dynamic batch dimension are such models. One that was exported for
    several images gets that many `copies` of each, and the first one's outputs are kept.
    """

    def __init__(self, model: nn.Module, *, copies: int = 1) -> None:
        super().__init__()
        self.model = model
        self.copies = copies
        force_eval(self)

    def forward(self, images: Tensor) -> Any:
        """Run the model image by image and concatenate each of its outputs."""
        returned = [self._run(image) for image in images.split(1)]
        return tree_map(lambda *parts: _concatenated(parts), returned[0], *returned[1:])

    def _run(self, image: Tensor) -> Any:
        if self.copies == 1:
            return self.model(image)
        returned = self.model(image.expand(self.copies, *image.shape[1:]))
        return tree_map(lambda value: _first_of(value, self.copies), returned)


def _first_of(value: Any, copies: int) -> Any:
    """Return the first row of a tensor with a row for each copy, and other values unchanged."""
    has_rows = isinstance(value, Tensor) and value.dim() > 0 and len(value) == copies
    return value[:1] if has_rows else value


def _concatenated(parts: tuple[Any, ...]) -> Any:
    """Concatenate tensors; for other values, return the first image's.

    An output that has no dimension of length one for the batch gets one.
    """
    if not isinstance(parts[0], Tensor):
        return parts[0]
    has_batch = parts[0].dim() > 0 and len(parts[0]) == 1
    return torch.cat([part if has_batch else part.unsqueeze(0) for part in parts])


def force_eval(module: nn.Module) -> None:
    """Put a module into evaluation mode, even if it belongs to an exported program.

    Modules of exported programs refuse `eval()`, and their training flag is set although they have
    no such mode.
    """
    try:
        module.eval()
    except NotImplementedError:  # raised by torch.export's modules
        for part in module.modules():
            part.training = False
