"""The model as it is asked: with its other inputs, about one of the things that it returns."""

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from dmbp.errors import ModelError
from dmbp.linear.adapted import Adapted
from dmbp.linear.batch_norm import RightBatchNorm
from dmbp.linear.capture import first_line
from dmbp.linear.held import Held
from dmbp.linear.inputs import check_batch, check_fit
from dmbp.linear.model import Model
from dmbp.linear.outputs import Output, check_scores, choice_among, picked


class AskedModel:
    """Runs a model; `held` are its other inputs, and `output` says what of its answer is meant."""

    def __init__(self, model: Model, *, output: Output) -> None:
        self._model = model
        self._callable = model.module() if isinstance(model, ExportedProgram) else model
        self._output: Output = output
        self.held = Held()

    def holding(self, held: Held) -> "AskedModel":
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
        return Adapted(self._callable, output=choice, held=self.held)

    def checked(self, inputs: Tensor) -> Tensor:
        """The inputs as they will be used, if the model can be asked about them."""
        check_batch(inputs)
        check_fit(inputs, self._tensors())
        return inputs.clone() if inputs.is_inference() else inputs.detach()

    def _returned(self, inputs: Tensor) -> Any:
        """Whatever the model returns."""
        try:
            with RightBatchNorm() if torch.is_grad_enabled() else nullcontext():
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
