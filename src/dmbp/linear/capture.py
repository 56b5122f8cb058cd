"""A model as a graph of ATen operations, by `torch.export`.

The graph is exported once for all batch sizes and reads the model's own parameters. Hooks would
miss `F.relu`, a module used twice, an in-place activation or a bare `x + y`; the graph has all.

    >>> capture(model, images).batch is None               # it serves any number of images
    True
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, Node

from dmbp.errors import CaptureError, DMBPError, ModelError
from dmbp.linear.adapted import Adapted, with_own_names
from dmbp.linear.held import Held
from dmbp.linear.inplace import without_inplace
from dmbp.linear.known import with_known_operations
from dmbp.linear.model import Model
from dmbp.linear.quiet import quietly


@dataclass(frozen=True)
class CapturedGraph:
    """Operations in order, the node that holds the output, and every tensor the model owns.

    `constants` maps placeholders to the model's own parameters and buffers, not to copies. `batch`
    is the batch size the graph is bound to, None where it serves any. `others` are the inputs
    beside the one that is explained.
    """

    graph: Graph
    input: Node
    output: Node
    constants: Mapping[Node, Tensor]
    batch: int | None
    others: tuple[Node, ...] = ()

    def holding(self, others: Sequence[Tensor]) -> "CapturedGraph":
        """The same with its other inputs held: constants from here on."""
        held = dict(zip(self.others, others, strict=True))
        return replace(self, constants={**self.constants, **held}, others=())


def capture(model: Model, inputs: Tensor, *, held: Held | None = None) -> CapturedGraph:
    """Export `model` for inputs like these, and for any number of them if the model allows it.

    `held` are the other inputs of a model that is `Adapted` to them.
    """
    held = held or Held()
    if isinstance(model, ExportedProgram):
        captured = _read(with_known_operations(without_inplace(model, ours=False)))
        if captured.batch not in (None, len(inputs)):
            raise CaptureError(
                f"the program was exported for batches of {captured.batch}, not {len(inputs)}; "
                "export it with a dynamic batch dimension"
            )
        return captured
    if isinstance(model, torch.jit.ScriptModule):
        raise CaptureError(
            "a model of TorchScript (torch.jit) cannot be exported: explain the module that it was "
            "made from, or what torch.export.export makes of that"
        )
    # A batch of one would be taken for a constant of the model.
    several = inputs if len(inputs) > 1 else inputs.expand(2, *inputs.shape[1:]).clone()
    try:
        captured = _read(with_known_operations(_export(model, several, held, is_dynamic=True)))
    except CaptureError:
        raise
    except ModelError:
        if len(inputs) > 1:
            raise
        captured = None  # it takes one image at a time
    if captured is not None and captured.batch in (None, len(inputs)):
        return captured
    # Or the model counts its images in Python, say by int(x.shape[0]).
    return _read(with_known_operations(_export(model, inputs, held, is_dynamic=False)))


def _export(model: nn.Module, example: Tensor, held: Held, *, is_dynamic: bool) -> ExportedProgram:
    arguments = held.beside(len(example))
    given = (example, *(arguments[k] for k in held.tensors))
    shapes = _dynamic_shapes(model, held) if is_dynamic else None
    # A model that switches gradients on or off inside is wrapped up there, unless they are so
    # already: no_grad suits one with a frozen backbone, enable_grad is the second try.
    with quietly():
        try:
            with torch.no_grad():
                program = torch.export.export(model, given, dynamic_shapes=shapes, strict=False)
            if any("set_grad_enabled" in str(node.target) for node in program.graph.nodes):
                with torch.enable_grad():
                    program = torch.export.export(model, given, dynamic_shapes=shapes, strict=False)
            program = with_own_names(program) if isinstance(model, Adapted) else program
            return without_inplace(program, ours=True)
        except Exception as error:
            _explain_failure(model, given, error)


def _dynamic_shapes(model: nn.Module, held: Held) -> Any:
    """Any number of images, in the explained input and in what is held for each image."""
    images = {0: Dim.AUTO}
    others = tuple(images if place in held.by_image else None for place in held.tensors)
    if others:
        return images, others
    first = next(iter(inspect.signature(model.forward).parameters.values()), None)
    takes_any = first is not None and first.kind is first.VAR_POSITIONAL  # forward(self, *args)
    return ((images,),) if takes_any else (images,)


def _explain_failure(model: nn.Module, given: tuple[Tensor, ...], error: Exception) -> NoReturn:
    """Raise the reason why a model could not be exported: the model's own, or the export's."""
    try:
        model(*given)
    except DMBPError:
        raise
    except Exception as own:
        raise ModelError(
            f"the model does not run on an input of shape {tuple(given[0].shape)}: "
            f"{first_line(own)}"
        ) from own
    raise CaptureError(
        "torch.export cannot turn the model into a graph "
        f"(does forward() branch on tensor values?): {first_line(error)}"
    ) from error


def first_line(error: Exception) -> str:
    """The first line of an exception's message that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _read(program: ExportedProgram) -> CapturedGraph:
    specs = program.graph_signature.input_specs
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    constants: dict[Node, Tensor] = {}
    inputs: list[Node] = []
    for node, spec in zip(placeholders, specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            inputs.append(node)
        elif spec.target in program.state_dict:
            constants[node] = program.state_dict[spec.target]
        else:
            constants[node] = cast("Tensor", program.constants[str(spec.target)])
    if not inputs:
        raise CaptureError("the model takes no input")
    size = inputs[0].meta["val"].shape[0]
    batch = size if isinstance(size, int) else size.node.maybe_as_int()
    return CapturedGraph(
        program.graph, inputs[0], _output(program), constants, batch, others=tuple(inputs[1:])
    )


def _output(program: ExportedProgram) -> Node:
    """The node of the one tensor that the model returns; buffers it updates do not count."""
    returned: Any = next(node for node in program.graph.nodes if node.op == "output").args[0]
    specs = program.graph_signature.output_specs
    outputs = [
        node
        for node, spec in zip(returned, specs, strict=True)
        if spec.kind is OutputKind.USER_OUTPUT
    ]
    if len(outputs) != 1:
        raise CaptureError(
            f"the model returns {len(outputs)} values; dmbp explains models that return one tensor "
            "of shape (batch, classes)"
        )
    return outputs[0]
