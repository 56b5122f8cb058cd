"""What a model can be asked about: a batch of finite numbers that fits its weights.

A model as torch.export is to see it: tensors in, the explained one first; one tensor out.

The caller's model is inside as it is, with its own parameters. Places in the graph are named as
the model names them.

    >>> Adapted(model, output=lambda found: found[:, :3])(images).shape
    torch.Size([1, 3])

The model as it is asked: with its other inputs, about one of the things that it returns.
"""

import copy
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn.parameter import is_lazy

from dmbp.errors import InputError, ModelError, first_line
from dmbp.linear.model.signature import ExtraInputs, Output, check_scores, choice_among, picked
from dmbp.linear.model.wrappers import Model
from dmbp.linear.rules.norms import CorrectedBatchNorm
from dmbp.precision import TOLERANCE


def check_batch(inputs: Tensor) -> None:
    """Refuse what is no batch of finite numbers."""
    if not isinstance(inputs, Tensor) or inputs.layout is not torch.strided:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"inputs must be a dense tensor, not {type(inputs).__name__}")
    if inputs.dim() >= 2 and len(inputs) == 0:
        raise InputError(f"there is no image in inputs of shape {tuple(inputs.shape)}")
    if inputs.dim() < 2:
        raise InputError("inputs must be a tensor with a batch dimension, such as (1, 3, 224, 224)")
    if inputs.dtype not in TOLERANCE:
        raise InputError(
            f"inputs must be floating point, not {inputs.dtype}: there is no slope between whole "
            "numbers; if forward() converts them itself, give it inputs.float()"
        )
    if not torch.isfinite(inputs).all():
        raise InputError("the inputs contain NaN or infinity")


def check_fit(inputs: Tensor, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse inputs of another dtype or on another device than the model's `tensors`."""
    for name, tensor in tensors:
        if is_lazy(tensor):
            raise ModelError(f"the model's {name!r} is not made yet: run the model once first")
        if tensor.is_inference():
            raise ModelError(
                "the model was made in torch.inference_mode(), which torch.export cannot "
                "capture; copy.deepcopy(model) outside of that mode can be explained"
            )
        if tensor.is_floating_point() and tensor.dtype != inputs.dtype:
            raise InputError(
                f"the inputs are {inputs.dtype} but the model's {name!r} is {tensor.dtype}; "
                f"use inputs.to({tensor.dtype})"
            )
        if tensor.device != inputs.device:
            raise InputError(
                f"the inputs are on {inputs.device} but the model's {name!r} is on "
                f"{tensor.device}; use inputs.to({str(tensor.device)!r})"
            )


INNER = "inner"


class AdaptedModel(nn.Module):
    """`inner` with its further arguments held and one of its outputs picked."""

    def __init__(
        self, inner: nn.Module, *, output: Output = None, held: ExtraInputs | None = None
    ) -> None:
        super().__init__()
        self.inner = inner
        self.training = inner.training
        self._output: Output = output
        self._held = held or ExtraInputs()

    def forward(self, explained: Tensor, *others: Tensor) -> Any:
        """The output picked."""
        return picked(self.inner(explained, *self._held.filled(others)), self._output)


def with_own_names(program: ExportedProgram) -> ExportedProgram:
    """The program of an adapted model, its operations placed where the caller's model has them."""
    for node in program.graph.nodes:
        stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
        node.meta["nn_module_stack"] = {
            key: (path.removeprefix(INNER).removeprefix("."), kind)
            for key, (path, kind) in stack.items()
            if path
        }
    return program


class ModelRunner:
    """Runs a model; `held` are its other inputs, and `output` says what of its answer is meant."""

    def __init__(self, model: Model, *, output: Output) -> None:
        self._model = model
        self._callable = model.module() if isinstance(model, ExportedProgram) else model
        self._output: Output = output
        self.held = ExtraInputs()

    def holding(self, held: ExtraInputs) -> "ModelRunner":
        """The same with these as the model's other inputs."""
        other = copy.copy(self)
        other.held = held
        return other

    def outputs(self, inputs: Tensor) -> Tensor:
        """What it answers, checked to be a finite tensor (images, classes)."""
        returned = self._returned(inputs)
        outputs = picked(returned, self._choice(returned, len(inputs)))
        check_scores(outputs, len(inputs), self._tensors())
        return outputs

    @torch.no_grad()
    def adapted(self, inputs: Tensor) -> Model:
        """The model, or one of one output around it that takes its tensors alone."""
        choice = self._choice(self._returned(inputs), len(inputs))
        if choice is None and not self.held.values:
            return self._model
        return AdaptedModel(self._callable, output=choice, held=self.held)

    def checked(self, inputs: Tensor) -> Tensor:
        """The inputs as they will be used, if the model can be asked about them."""
        check_batch(inputs)
        check_fit(inputs, self._tensors())
        return inputs.clone() if inputs.is_inference() else inputs.detach()

    def _returned(self, inputs: Tensor) -> Any:
        """Whatever the model returns."""
        try:
            with CorrectedBatchNorm() if torch.is_grad_enabled() else nullcontext():
                # A copy: some write into their input.
                return self._callable(inputs.clone(), *self.held.beside(len(inputs)))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            hint = "; of a single image make a batch, inputs[None]" if inputs.dim() == 3 else ""
            raise ModelError(
                f"the model does not run on an input of shape {tuple(inputs.shape)}: "
                f"{first_line(error)}{hint}"
            ) from error

    def _choice(self, returned: Any, images: int) -> Output:
        return choice_among(returned, images=images) if self._output is None else self._output

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The model's own tensors by name, in one walk through its modules."""
        if isinstance(self._model, nn.Module):
            for prefix, module in self._model.named_modules():
                for name, value in (*module._parameters.items(), *module._buffers.items()):
                    if value is not None:
                        yield f"{prefix}.{name}" if prefix else name, value
            return
        for name, value in self._model.state_dict.items():
            if isinstance(value, Tensor):
                yield name, value
