"""A graph without in-place operations.

`torch.export` keeps `relu_`. Running its functionalisation costs as much as the export itself, and
nearly every in-place operation in practice is an activation on a fresh tensor that nobody reads
again: those are renamed here, and the whole pass runs only where one is left.

A program of operations that have rules: others are broken into smaller ones, or refused.

A model as a graph of ATen operations, by `torch.export`.

The graph is exported once for all batch sizes and reads the model's own parameters. Hooks would
miss `F.relu`, a module used twice, an in-place activation or a bare `x + y`; the graph has all.

    >>> capture(model, images).batch is None               # it serves any number of images
    True
"""

import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, Node

from dmbp.errors import CaptureError, DMBPError, ModelError, first_line
from dmbp.linear.model.runner import SingleOutputModel, with_own_names
from dmbp.linear.model.signature import ExtraInputs
from dmbp.linear.model.wrappers import Model
from dmbp.linear.rules.table import RULES, all_unsupported, operation_name
from dmbp.process import silence_output

# Operations that return a tensor of their own, never their input or a view of it.
_FRESH = frozenset(
    f"aten::{name}"
    for name in (
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("linear", "addmm", "mm", "batch_norm", "add", "sub", "mul", "cat"),
    )
)


def without_inplace(program: ExportedProgram, *, ours: bool) -> ExportedProgram:
    """The same program with every in-place operation replaced by its functional twin.

    A program that is not `ours` to change is copied instead.
    """
    mutating = [node for node in program.graph.nodes if _mutates(node)]
    if not mutating:
        return program
    twins = {node: _twin(node) for node in mutating}
    if ours and all(twins[node] is not None and _unseen(node) for node in mutating):
        for node, twin in twins.items():
            node.target = twin
        return program
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return program.run_decompositions({})


def _mutates(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _twin(node: Node) -> OpOverload | None:
    """`aten.relu.default` for `aten.relu_.default`."""
    assert isinstance(node.target, OpOverload)
    name = node.target._schema.name.removeprefix("aten::")
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.endswith("_") else None
    return getattr(packet, node.target._overloadname, None)


def _unseen(node: Node) -> bool:
    """Whether nobody else reads the tensor that the operation writes over, or a view of it."""
    source = node.args[0]
    if not isinstance(source, Node) or not isinstance(source.target, OpOverload):
        return False
    # An in-place operation passes on a tensor that was fresh, if it was unseen itself.
    fresh = source.target._schema.name.removesuffix("_") in _FRESH
    return fresh and list(source.users) == [node]


NO_RULE = "it has no rule"


def decompose_unknown(program: ExportedProgram) -> ExportedProgram:
    """Break operations that have no rule into smaller ones that may have."""
    unknown = _unknown(program)
    if not unknown:
        return program
    decompositions = {
        operation: function
        for operation, function in torch.export.default_decompositions().items()
        if operation_name(operation) not in RULES
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            smaller = program.run_decompositions(decompositions)
        except Exception as error:
            raise all_unsupported([(node, NO_RULE) for node in unknown]) from error
    remaining = _unknown(smaller)
    if remaining:
        # The name the user knows is that of the operation before it was broken up.
        known = {node.name: node for node in program.graph.nodes}
        raise all_unsupported([(_origin(node, known), NO_RULE) for node in remaining])
    return smaller


def _origin(node: Node, known: Mapping[str, Node]) -> Node:
    """The operation that was broken up into this one, among others."""
    sources: Any = node.meta.get("from_node") or ()
    return next((known[source.name] for source in sources if source.name in known), node)


def _unknown(program: ExportedProgram) -> list[Node]:
    """Operations without a rule that depend on the input that is explained.

    What such an operation computes depends on it too, unless it is a decision: of whole numbers or
    truth values nobody can know.
    """
    explained = list(program.graph_signature.user_inputs)[:1]
    active = {n for n in program.graph.nodes if n.op == "placeholder" and n.name in explained}
    unknown: list[Node] = []
    for node in program.graph.nodes:
        if node.op != "call_function" or not active.intersection(node.all_input_nodes):
            continue
        rule = RULES.get(operation_name(node.target))
        if rule is None and not of_shapes(node):
            unknown.append(node)
        if (rule is None or rule.kind != "decision") and _of_numbers(node):
            active.add(node)  # a decision or an index is a constant from here on
    return unknown


def _of_numbers(node: Node) -> bool:
    """Whether a node computes real or complex numbers."""
    value = node.meta.get("val")
    values: Sequence[Any] = value if isinstance(value, list | tuple) else (value,)
    return any(
        isinstance(one, Tensor) and (one.is_floating_point() or one.is_complex()) for one in values
    )


def of_shapes(node: Node) -> bool:
    """Whether a node computes with sizes, not with tensors."""
    return isinstance(node.meta.get("val"), int | torch.SymInt | torch.SymBool | torch.SymFloat)


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


def capture(model: Model, inputs: Tensor, *, held: ExtraInputs | None = None) -> CapturedGraph:
    """Export `model` for inputs like these, and for any number of them if the model allows it.

    `held` are the other inputs of a model that is `SingleOutputModel` to them.
    """
    held = held or ExtraInputs()
    if isinstance(model, ExportedProgram):
        captured = _read(decompose_unknown(without_inplace(model, ours=False)))
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
        captured = _read(decompose_unknown(_export(model, several, held, is_dynamic=True)))
    except CaptureError:
        raise
    except ModelError:
        if len(inputs) > 1:
            raise
        captured = None  # it takes one image at a time
    if captured is not None and captured.batch in (None, len(inputs)):
        return captured
    # Or the model counts its images in Python, say by int(x.shape[0]).
    return _read(decompose_unknown(_export(model, inputs, held, is_dynamic=False)))


def _export(
    model: nn.Module, example: Tensor, held: ExtraInputs, *, is_dynamic: bool
) -> ExportedProgram:
    arguments = held.arguments(len(example))
    given = (example, *(arguments[k] for k in held.tensor_positions))
    shapes = _dynamic_shapes(model, held) if is_dynamic else None
    # A model that switches gradients on or off inside is wrapped up there, unless they are so
    # already: no_grad suits one with a frozen backbone, enable_grad is the second try.
    with silence_output():
        try:
            with torch.no_grad():
                program = torch.export.export(model, given, dynamic_shapes=shapes, strict=False)
            if any("set_grad_enabled" in str(node.target) for node in program.graph.nodes):
                with torch.enable_grad():
                    program = torch.export.export(model, given, dynamic_shapes=shapes, strict=False)
            program = with_own_names(program) if isinstance(model, SingleOutputModel) else program
            return without_inplace(program, ours=True)
        except Exception as error:
            _explain_failure(model, given, error)


def _dynamic_shapes(model: nn.Module, held: ExtraInputs) -> Any:
    """Any number of images, in the explained input and in what is held for each image."""
    images = {0: Dim.AUTO}
    others = tuple(images if place in held.by_image else None for place in held.tensor_positions)
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
