"""Explains a model in the middle of training, and leaves everything as it was.

`TrainedModel.maps` explains with the weights as they are now. Nothing that holds a copy of weights
outlives the call: only the captured graph is kept, which reads the model's own parameters. Copies
could go stale unnoticed, since PyTorch's fused optimisers change weights without counting it as a
change. A model of which a layer or a tensor was exchanged for another is captured again.
"""

from __future__ import annotations

import operator
import random
import warnings
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from dmbp.attribution import DMBP, METHODS, Method
from dmbp.errors import ModelError
from dmbp.linear import Linearizer, Target
from dmbp.linear.model.wrappers import unwrapped


class TrainedModel:
    """Explains fixed images with a model whose weights change between the calls.

    Args:
        images: The images, (images, channels, height, width).
        targets: What to explain, one target for each image.
        method: A name from `dmbp.methods()`.
        settings: Keyword arguments of the method.
        additional_forward_args: The model's other inputs, as for `DMBP.attribute`.
    """

    def __init__(
        self,
        images: Tensor,
        targets: Target,
        *,
        method: str,
        settings: Mapping[str, Any],
        additional_forward_args: Any = None,
    ) -> None:
        self.images = images
        self.targets: Target = targets
        self.method = method
        self._settings = settings
        self._arguments = additional_forward_args
        self._captured: Linearizer | None = None
        self._parts: list[object] = []

    def prepare(self, model: nn.Module) -> None:
        """Capture the model's graph, if the method explains with it and it is not known yet."""
        with _untouched(model) as inner:
            explainer = self._explainer(inner)
            if isinstance(explainer, DMBP):
                inputs, arguments = self._inputs(inner)
                explainer.linearizer.linearize(
                    inputs, target=self.targets, additional_forward_args=arguments
                )

    def maps(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Return the maps (images, height, width) and scores (images,) of the model as it is.

        Raises:
            DMBPError: If the model cannot be explained.
        """
        with _untouched(model) as inner:
            explainer = self._explainer(inner)
            inputs, arguments = self._inputs(inner)
            maps = explainer.attribute(
                inputs, target=self.targets, additional_forward_args=arguments
            )
            runner = explainer.linearizer.runner
            runner = runner.with_extra_inputs(runner.parse_extra_inputs(arguments, inputs))
            _, outputs, rows = runner.target_rows(inputs, self.targets)
            scores = rows.scores(outputs)
        maps, scores = maps.sum(1).float().cpu(), scores.detach().float().cpu()
        if not (bool(maps.isfinite().all()) and bool(scores.isfinite().all())):
            raise ModelError("the maps are not finite; are the model's weights?")
        return maps, scores

    def _explainer(self, model: nn.Module) -> Method:
        """Return a new explainer that shares nothing but the graph with those before."""
        explainer = METHODS[self.method](model, **self._settings)
        parts: list[object] = [*model.modules(), *_tensors(model)]
        same = len(parts) == len(self._parts) and all(map(operator.is_, parts, self._parts))
        if self._captured is not None and same:
            explainer.linearizer.share_captures(self._captured)
        else:
            self._captured, self._parts = explainer.linearizer, parts
        return explainer

    def _inputs(self, model: nn.Module) -> tuple[Tensor, Any]:
        """Return the images and the other inputs where the model is and in its precision."""
        like = next((t for t in _tensors(model) if t.is_floating_point()), self.images)

        def moved(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value.to(like if value.is_floating_point() else like.device)

        return moved(self.images), tree_map(moved, self._arguments)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the graph and the model out of copies and pickles."""
        return {**self.__dict__, "_captured": None, "_parts": []}


def _tensors(model: nn.Module) -> list[Tensor]:
    """Return the model's parameters and buffers."""
    return [*model.parameters(), *model.buffers()]


@contextmanager
def _untouched(model: nn.Module) -> Generator[nn.Module]:
    """Yield the model without its wrappers, and restore on exit what explaining may change.

    These are random numbers, warnings that are for those who explain a model once, and what
    `accelerate` or `compile()` put in the place of `forward()`. The explainer itself disables
    autocast and restores the mode of every module.
    """
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        inner = unwrapped(model)
        assert isinstance(inner, nn.Module), "only modules are trained"
        _refuse_sharded(inner)
        stack.enter_context(_same_random_numbers())
        for module in inner.modules():
            stack.enter_context(_plain_forward(module))
        yield inner


REPLACED = ("forward", "_compiled_call_impl")


@contextmanager
def _plain_forward(module: nn.Module) -> Generator[None]:
    """Run a module's own `forward()` inside, without what was put in its place.

    With mixed precision, `accelerate` replaces it by a function that enables autocast, and keeps
    the original beside it. `Module.compile()` keeps the compiled call in another attribute.
    """
    state = module.__dict__
    before = {name: state[name] for name in REPLACED if name in state}
    if "_original_forward" in state and "forward" in state:
        state["forward"] = state["_original_forward"]
    state.pop("_compiled_call_impl", None)
    try:
        yield
    finally:
        state.update(before)


@contextmanager
def _same_random_numbers() -> Generator[None]:
    """Restore the generators of Python, NumPy and PyTorch on exit."""
    python, array, cpu = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        random.setstate(python)
        numpy.random.set_state(array)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)


SHARDED = (
    "the model's weights are sharded over processes (FSDP, DeepSpeed ZeRO 3), and a single process "
    "cannot run it"
)


def _refuse_sharded(model: nn.Module) -> None:
    """Raise if running the model in one process would wait for others that do not run it."""
    kinds = {type(module).__name__ for module in model.modules()}
    kinds |= {type(parameter).__name__ for parameter in model.parameters()}
    in_deepspeed = any(hasattr(parameter, "ds_id") for parameter in model.parameters())
    if in_deepspeed or kinds & {"FullyShardedDataParallel", "DTensor"}:
        raise ModelError(SHARDED)
