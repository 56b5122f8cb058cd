"""A model that takes a single image, as one exported without a dynamic batch, for any number.

What is explained: a module or an exported program, taken out of its wrappers, in evaluation.
"""

import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_map

from dmbp.errors import ModelError
from dmbp.process import PROCESS_LOCK


class OneAtATime(nn.Module):
    """Runs a model on one image after the other."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        force_eval(self)

    def forward(self, images: Tensor) -> Any:
        """The model's outputs, image after image; of several things that it returns, each."""
        found = [self.model(image) for image in images.split(1)]
        return tree_map(lambda *parts: _joined(parts), found[0], *found[1:])


def _joined(parts: tuple[Any, ...]) -> Any:
    """Every image's part together; what is no tensor is the first one's."""
    return torch.cat(parts) if isinstance(parts[0], Tensor) and parts[0].dim() else parts[0]


def force_eval(module: nn.Module) -> None:
    """Put a module into evaluation mode, also one of an exported program, which has no other."""
    try:
        module.eval()
    except NotImplementedError:
        for part in module.modules():
            part.training = False


Model = nn.Module | ExportedProgram


def unwrapped(model: Any) -> Model:
    """The model inside DataParallel or `torch.compile`, which have no graph of their own."""
    inner = model
    while (inside := _inside(inner)) is not None:
        inner = inside
    if not isinstance(inner, nn.Module | ExportedProgram):
        raise ModelError(f"a model is an nn.Module or an ExportedProgram, not {inner!r:.60}")
    if inner is not model:
        warnings.warn(
            f"the model is explained without its {type(model).__name__} wrapper: the same network "
            "on one device, not compiled",
            stacklevel=_levels_up(),
        )
    return _for_any_number(inner) if isinstance(inner, ExportedProgram) else inner


def _levels_up() -> int:
    """How far up from its caller the first line is that is not this package's own."""
    frame, levels = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("dmbp."):
        frame, levels = frame.f_back, levels + 1
    return levels


def _for_any_number(program: ExportedProgram) -> Model:
    """A program that was exported for one image, made to run on one after the other."""
    explained = list(program.graph_signature.user_inputs)[:1]
    sizes = [n.meta["val"].shape[0] for n in program.graph.nodes if n.name in explained]
    return OneAtATime(program.module()) if sizes == [1] else program


def _inside(model: Any) -> Any:
    """What a wrapper holds; None where there is no wrapper."""
    if isinstance(model, nn.parallel.DataParallel | nn.parallel.DistributedDataParallel):
        return model.module
    return getattr(model, "_orig_mod", None)


@contextmanager
def evaluating(model: Model, *, stacklevel: int = 4) -> Generator[None]:
    """Put every module in evaluation mode, and back as it was on the way out.

    A warning says so where the caller `stacklevel` frames up has written the call.
    """
    with PROCESS_LOCK:
        modules = list(model.modules()) if isinstance(model, nn.Module) else []
        training = [module for module in modules if module.training]
        if training:
            warnings.warn(
                "the model is in training mode; it is explained as model.eval() would run it",
                stacklevel=stacklevel,
            )
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for module in training:
                module.training = True
