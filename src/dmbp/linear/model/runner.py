"""Runs a model with its extra inputs, and returns the output that is explained.

    >>> ModelRunner(model, output=lambda returned: returned[:, :3]).outputs(images).shape
    torch.Size([1, 3])

If a model ends in a softmax, a log-softmax or a sigmoid, its output is the scores before it, and
`ModelRunner.activation` gives the model's own probabilities. An output with more dimensions than
(images, classes) is flattened to that; `ModelRunner.form` knows its shape.

`ModelRunner.exportable` wraps the model, if needed, so that `torch.export` sees tensors in and one
tensor out. The wrapped model keeps its own parameters, and `with_own_names` restores its own module
names in the exported graph.
"""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from dmbp.errors import DMBPError, ModelError
from dmbp.linear.model.checks import check_batch, check_fit, check_scores, infer_by_image
from dmbp.linear.model.failures import forward_failure
from dmbp.linear.model.signature import (
    ExtraInputs,
    Output,
    OutputForm,
    find_output,
    select_output,
)
from dmbp.linear.model.wrappers import (
    Model,
    evaluating,
    levels_to_caller,
    packed,
    unpacked,
    unwrapped,
)
from dmbp.linear.rules.norms import CorrectedBatchNorm
from dmbp.linear.targets import Target, TargetRows, read_target, rows_without_forward
from dmbp.precision import full_precision
from dmbp.probabilities import Activation, LastActivation
from dmbp.process import silence_output

FORWARD_BATCH = 256
"""The largest batch of a forward pass when targets are read."""

INNER = "inner"

TOLD: WeakSet[Model] = WeakSet()
"""The models that end in an activation and of which that was said; it is said once."""


class SingleOutputModel(nn.Module):
    """Wraps a model so that it takes only tensors and returns only the explained output.

    `form` is what a run of the model has shown about that output.
    """

    def __init__(
        self, inner: nn.Module, *, output: Output, form: OutputForm, extra_inputs: ExtraInputs
    ) -> None:
        super().__init__()
        self.inner = inner
        self.training = inner.training
        self._output: Output = output
        self._form = form
        self._extra_inputs = extra_inputs

    def forward(self, explained: Tensor, *others: Tensor) -> Any:
        """Run the model with `others` in place of the tensors among its extra inputs."""
        with LastActivation() as last:
            returned = self.inner(explained, *self._extra_inputs.with_tensors(others))
            outputs = select_output(returned, self._output)
        found = None if self._form.activation is None else last.before(outputs)
        outputs = outputs if found is None else found[1]
        return outputs.flatten(1) if self._form.has_several_dimensions else outputs


def with_own_names(program: ExportedProgram) -> ExportedProgram:
    """Remove the wrapper's traces from a `SingleOutputModel`'s program.

    These are the prefix of its module names, and a last activation that nothing reads any more.
    """
    program.graph.eliminate_dead_code()
    for node in program.graph.nodes:
        stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
        node.meta["nn_module_stack"] = {
            key: (path.removeprefix(INNER).removeprefix("."), kind)
            for key, (path, kind) in stack.items()
            if path
        }
    return program


class ModelRunner:
    """Runs a model and returns the output that is explained.

    Args:
        model: A module or an exported program; DataParallel and `torch.compile` are unwrapped.
        output: Which of the model's outputs to return; None finds it.
    """

    def __init__(self, model: Model, *, output: Output = None) -> None:
        self.model = unwrapped(model)
        self.extra_inputs = ExtraInputs()
        self._callable = (
            self.model.module() if isinstance(self.model, ExportedProgram) else self.model
        )
        self._output: Output = output
        self._forms: dict[Any, OutputForm] = {}
        self._without_activation: set[Any] = set()

    def __copy__(self) -> "ModelRunner":
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Give programs, which cannot be pickled, as the content of their files."""
        own = {"model": packed(self.model), "_callable": None, "_without_activation": set()}
        return {**self.__dict__, **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a model or the content of a program's file."""
        self.__dict__.update(state)
        self.model = model = unpacked(state["model"])
        self._callable = model.module() if isinstance(model, ExportedProgram) else model

    def with_extra_inputs(self, extra_inputs: ExtraInputs) -> "ModelRunner":
        """Return a runner of the same model with other extra inputs."""
        other = copy.copy(self)
        other.extra_inputs = extra_inputs
        return other

    def parse_extra_inputs(self, additional_forward_args: Any, inputs: Tensor) -> ExtraInputs:
        """Read the extra inputs and determine which have one entry for each image."""
        if additional_forward_args is None:
            return ExtraInputs()
        with silence_output(), evaluating(self.model):
            extra = ExtraInputs.of(additional_forward_args, images=len(inputs))
            return infer_by_image(self.outputs_with, inputs, extra)

    @property
    def has_extra_inputs(self) -> bool:
        """Whether the model takes anything besides the explained inputs."""
        return bool(self.extra_inputs.values)

    def signature(self, inputs: Tensor) -> Any:
        """Return what a captured graph depends on: shapes without the batch, dtypes, the device."""
        form = (tuple(inputs.shape[1:]), inputs.dtype, inputs.device)
        return (*form, self.extra_inputs.signature)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the output to explain, (images, classes), in PyTorch's current precision.

        Raises:
            ModelError: If the model does not run, or its output has another shape or is not finite.
        """
        last = LastActivation()
        returned = self._watched_forward(inputs, last)
        with last:
            outputs = select_output(returned, self._choose_output(returned, len(inputs)))
        check_scores(outputs, len(inputs), self._tensors())
        form, outputs = OutputForm.of(outputs, last)
        self._remember(inputs, form)
        return outputs.flatten(1)

    def _remember(self, inputs: Tensor, form: OutputForm) -> None:
        """Keep the form of the outputs, and say once that a last activation is left out."""
        if form.activation is not None and self.model not in TOLD:
            TOLD.add(self.model)
            warnings.warn(
                f"the model ends in a {form.activation}: the scores before it are explained",
                stacklevel=levels_to_caller(),
            )
        self._forms[self.signature(inputs)] = form
        if form.activation is None:
            self._without_activation.add(self._structure(inputs))

    def forget(self) -> None:
        """Forget that the model was seen to end in no activation, because it has changed."""
        self._without_activation.clear()

    def _structure(self, inputs: Tensor) -> Any:
        """Return what decides which functions a model calls, unless its own attributes do."""
        return (*self.signature(inputs), *map(id, self._callable.modules()))

    def form(self, inputs: Tensor) -> OutputForm | None:
        """Return the form of the outputs for such inputs, or None if there was no run yet."""
        return self._forms.get(self.signature(inputs))

    def activation(self, given: Activation) -> Callable[[Tensor], Tensor]:
        """Return a function that turns the model's scores into probabilities.

        These are the model's own if it ends in an activation; a function that is given is applied
        to what the model itself returns.
        """
        return lambda outputs: next(iter(self._forms.values())).probabilities(outputs, given)

    @full_precision()
    def run(self, inputs: Tensor) -> Tensor:
        """Return `forward(inputs)` in full precision; autograd can differentiate it."""
        return self.forward(inputs)

    @torch.no_grad()
    def outputs(self, inputs: Tensor) -> Tensor:
        """Return `run(inputs)` without gradients."""
        return self.run(inputs).detach()

    def outputs_with(self, inputs: Tensor, extra_inputs: ExtraInputs) -> Tensor:
        """Return the outputs for other extra inputs."""
        return self.with_extra_inputs(extra_inputs).outputs(inputs)

    @full_precision()
    @torch.inference_mode(False)
    def target_rows(
        self,
        inputs: Tensor,
        target: Target,
        outputs: Tensor | None = None,
        *,
        activation: Activation = "softmax",
    ) -> tuple[Tensor, Tensor, TargetRows]:
        """Run the model and read `target`.

        Args:
            inputs: The images, (images, …).
            target: What to explain about each image.
            outputs: The model's outputs at the inputs, if they are known already.
            activation: What turns outputs into the probabilities of targets with a name, unless the
                model ends in an activation of its own.

        Returns:
            The inputs, checked and detached; the model's outputs; and a row for each target.
        """
        with evaluating(self.model):
            inputs = self.check_inputs(inputs)
            if outputs is not None:
                check_scores(outputs, len(inputs), self._tensors())
            else:
                indices = torch.arange(len(inputs), device=inputs.device)
                outputs = torch.cat(
                    [
                        self.outputs_with(inputs[part], self.extra_inputs.pick(part.tolist()))
                        for part in indices.split(FORWARD_BATCH)
                    ]
                )
            form = self.form(inputs) or OutputForm(tuple(outputs.shape[1:]))
            self._forms[self.signature(inputs)] = form
            rows = read_target(
                target,
                outputs=outputs,
                shape=form.shape,
                size=tuple(inputs.shape[2:]),
                activation=form.own_activation or activation,
            )
            return inputs, outputs, rows

    @torch.inference_mode(False)
    def target_rows_without_forward(
        self, inputs: Tensor, target: Target
    ) -> tuple[Tensor, TargetRows] | None:
        """Return the inputs and rows of `target_rows` without running the model, or None.

        This is possible if the model was run on inputs of this form before, and each image has one
        target that is a class or a weighted sum of classes. `TargetRows.among` checks the number of
        classes later, in case it has changed.
        """
        form = self.form(inputs)
        if form is None:
            return None
        rows = rows_without_forward(target, images=len(inputs), shape=form.shape)
        if rows is None or rows.image != tuple(range(len(inputs))):
            return None
        return self.check_inputs(inputs), rows

    def check_inputs(self, inputs: Tensor) -> Tensor:
        """Check that the model can take these inputs, and return them detached."""
        check_batch(inputs)
        check_fit(inputs, self._tensors())
        return inputs.clone() if inputs.is_inference() else inputs.detach()

    @torch.no_grad()
    def exportable(self, inputs: Tensor) -> Model:
        """Return the model, wrapped if needed so it takes only tensors and returns one output."""
        last = LastActivation()
        returned = self._watched_forward(inputs, last)
        with last:
            output = self._choose_output(returned, len(inputs))
            form, _ = OutputForm.of(select_output(returned, output), last)
        if output is None and not self.has_extra_inputs and form.is_plain:
            return self.model
        return SingleOutputModel(
            self._callable, output=output, form=form, extra_inputs=self.extra_inputs
        )

    def _watched_forward(self, inputs: Tensor, last: LastActivation) -> Any:
        """Return whatever the model returns; `last` sees its functions, where that is possible.

        Watching doubles the time of a small batch on a GPU, so a model that was seen to end in no
        activation is not watched again.
        """
        if self._structure(inputs) in self._without_activation:
            return self._forward(inputs)
        try:
            with last:
                return self._forward(inputs)
        except ModelError:
            return self._forward(inputs)  # torch.cond, for one, does not run in such a context

    def _forward(self, inputs: Tensor) -> Any:
        """Return whatever the model returns."""
        try:
            with CorrectedBatchNorm() if torch.is_grad_enabled() else nullcontext():
                # Some models write into their input, so they get a copy.
                return self._callable(inputs.clone(), *self.extra_inputs.arguments(len(inputs)))
        except (torch.OutOfMemoryError, DMBPError):
            raise
        except Exception as error:
            raise forward_failure(error, inputs) from error

    def _choose_output(self, returned: Any, images: int) -> Output:
        return find_output(returned, images=images) if self._output is None else self._output

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the model's parameters and buffers with their names."""
        if isinstance(self.model, nn.Module):
            for prefix, module in self.model.named_modules():
                for name, value in (*module._parameters.items(), *module._buffers.items()):
                    if value is not None:
                        yield f"{prefix}.{name}" if prefix else name, value
            return
        for name, value in self.model.state_dict.items():
            if isinstance(value, Tensor):
                yield name, value
