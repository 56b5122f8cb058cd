"""Captures a model with `torch.export`, as a graph of ATen operations that have freezing rules.

The graph is exported once for all batch sizes and reads the model's own parameters. Hooks would
miss `F.relu`, a module that is used twice, an in-place activation or a bare `x + y`; the graph has
all of them.

    >>> capture(model, images).batch is None               # it serves any number of images
    True

After the export, in-place operations are replaced (`remove_inplace`), and operations without a rule
are decomposed into smaller ones (`decompose_unknown`), or refused.
"""

import inspect
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, Node

from dmbp.errors import CaptureError, DMBPError, ModelError
from dmbp.linear.model.failures import export_failure, forward_failure
from dmbp.linear.model.runner import SingleOutputModel, with_own_names
from dmbp.linear.model.signature import ExtraInputs
from dmbp.linear.model.torchscript.module import without_torchscript
from dmbp.linear.model.wrappers import Model
from dmbp.linear.rules.table import NO_RULE, RULES, operation_name, unsupported_errors
from dmbp.process import defer_interrupts, silence_output


@dataclass(frozen=True)
class CapturedGraph:
    """A model's operations in order, with the nodes of its input and output, and its tensors.

    `constants` maps placeholders to the model's own parameters and buffers, not to copies. `batch`
    is the batch size that the graph is bound to, or None if it serves any. `extra_inputs` are the
    placeholders of all inputs but the explained one.
    """

    graph: Graph
    input: Node
    output: Node
    constants: Mapping[Node, Tensor]
    batch: int | None
    extra_inputs: tuple[Node, ...] = ()

    def with_extra_inputs(self, tensors: Sequence[Tensor]) -> "CapturedGraph":
        """Return the same graph with these tensors as constants in place of its extra inputs."""
        extra_inputs = dict(zip(self.extra_inputs, tensors, strict=True))
        return replace(self, constants={**self.constants, **extra_inputs}, extra_inputs=())


def capture(
    model: Model, inputs: Tensor, *, extra_inputs: ExtraInputs | None = None
) -> CapturedGraph:
    """Export `model` for inputs like these, and for any number of them if the model allows it.

    A model with `extra_inputs` has to be a `SingleOutputModel` that takes them.
    """
    extra_inputs = extra_inputs or ExtraInputs()
    if isinstance(model, ExportedProgram):
        return _capture_program(model, len(inputs))
    model = without_torchscript(model)
    # `torch.export` would treat a batch size of one as a constant of the model.
    example = inputs if len(inputs) > 1 else inputs.expand(2, *inputs.shape[1:]).clone()
    try:
        program = _export(model, example, extra_inputs, is_dynamic=True)
        captured = _captured_graph(decompose_unknown(program))
    except CaptureError:
        raise
    except ModelError:
        if len(inputs) > 1:
            raise
        captured = None  # the model takes one image at a time
    if captured is not None and captured.batch in (None, len(inputs)):
        return captured
    # The model may also read its batch size in Python, for example as int(x.shape[0]).
    program = _export(model, inputs, extra_inputs, is_dynamic=False)
    return _captured_graph(decompose_unknown(program))


def _capture_program(program: ExportedProgram, images: int) -> CapturedGraph:
    captured = _captured_graph(decompose_unknown(remove_inplace(program, may_modify=False)))
    if captured.batch not in (None, images):
        raise CaptureError(
            f"the program was exported for batches of {captured.batch}, not {images}; "
            "export it with a dynamic batch dimension"
        )
    return captured


def _export(
    model: nn.Module, example: Tensor, extra_inputs: ExtraInputs, *, is_dynamic: bool
) -> ExportedProgram:
    import_exporter()
    arguments = extra_inputs.arguments(len(example))
    tensors = (example, *(arguments[k] for k in extra_inputs.tensor_positions))
    shapes = _dynamic_shapes(model, extra_inputs) if is_dynamic else None
    # If forward() switches gradients on or off, torch.export wraps that part into a subgraph,
    # unless gradients are in that state already. no_grad suits models with a frozen backbone;
    # enable_grad is the second attempt.
    with silence_output():
        try:
            with torch.no_grad():
                program = torch.export.export(model, tensors, dynamic_shapes=shapes, strict=False)
            if any("set_grad_enabled" in str(node.target) for node in program.graph.nodes):
                with torch.enable_grad():
                    program = torch.export.export(
                        model, tensors, dynamic_shapes=shapes, strict=False
                    )
            program = with_own_names(program) if isinstance(model, SingleOutputModel) else program
            return remove_inplace(program, may_modify=True)
        except Exception as error:
            _raise_export_failure(model, tensors, error)


@cache
def import_exporter() -> None:
    """Import the thousand modules that `torch.export` imports on its first use, in one piece.

    If an interrupt left them half imported, every later export in the process would fail, and the
    model would be blamed. A tiny export imports them all, whatever the release of torch.
    """
    with defer_interrupts(), silence_output(), torch.no_grad(), suppress(Exception):
        shapes = ({0: Dim.AUTO},)
        example = (torch.zeros(2, 1),)
        program = torch.export.export(nn.ReLU(), example, dynamic_shapes=shapes, strict=False)
        program.run_decompositions({})


def _dynamic_shapes(model: nn.Module, extra_inputs: ExtraInputs) -> Any:
    """Return the shapes with a dynamic batch size for all inputs with one entry for each image."""
    images = {0: Dim.AUTO}
    others = tuple(
        images if position in extra_inputs.by_image else None
        for position in extra_inputs.tensor_positions
    )
    if others:
        return images, others
    first = next(iter(inspect.signature(model.forward).parameters.values()), None)
    takes_any = first is not None and first.kind is first.VAR_POSITIONAL  # forward(self, *args)
    return ((images,),) if takes_any else (images,)


def _raise_export_failure(
    model: nn.Module, tensors: tuple[Tensor, ...], error: Exception
) -> NoReturn:
    """Raise the model's own error if it does not run either, or else the export's."""
    try:
        model(*tensors)
    except DMBPError:
        raise
    except Exception as model_error:
        raise forward_failure(model_error, tensors[0]) from model_error
    raise export_failure(model, error) from error


def _captured_graph(program: ExportedProgram) -> CapturedGraph:
    """Read a program's graph and the tensors that it refers to."""
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
        program.graph, inputs[0], _output(program), constants, batch, extra_inputs=tuple(inputs[1:])
    )


def _output(program: ExportedProgram) -> Node:
    """Return the node of the one tensor that the model returns; updated buffers do not count."""
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


def decompose_unknown(program: ExportedProgram) -> ExportedProgram:
    """Decompose operations without a rule into smaller ones, or refuse them."""
    unknown = _unknown_operations(program)
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
            raise unsupported_errors([(node, NO_RULE) for node in unknown]) from error
    remaining = _unknown_operations(smaller)
    if remaining:
        # Users know the operation by its name before it was decomposed.
        originals = {node.name: node for node in program.graph.nodes}
        raise unsupported_errors([(_original(node, originals), NO_RULE) for node in remaining])
    return smaller


def _original(node: Node, originals: Mapping[str, Node]) -> Node:
    """Return the operation that this one is a part of."""
    sources: Any = node.meta.get("from_node") or ()
    return next((originals[source.name] for source in sources if source.name in originals), node)


def _unknown_operations(program: ExportedProgram) -> list[Node]:
    """Return the operations without a rule that depend on the explained input.

    The result of such an operation depends on the input too, unless it is an integer or a truth
    value, which is constant around x.
    """
    explained = list(program.graph_signature.user_inputs)[:1]
    active = {n for n in program.graph.nodes if n.op == "placeholder" and n.name in explained}
    unknown: list[Node] = []
    for node in program.graph.nodes:
        if node.op != "call_function" or not active.intersection(node.all_input_nodes):
            continue
        rule = RULES.get(operation_name(node.target))
        if rule is None and not computes_sizes(node):
            unknown.append(node)
        if (rule is None or rule.kind != "decision") and _computes_numbers(node):
            active.add(node)  # decisions and indices are constants for the operations after them
    return unknown


def _computes_numbers(node: Node) -> bool:
    """Return whether a node computes real or complex numbers."""
    value = node.meta.get("val")
    values: Sequence[Any] = value if isinstance(value, list | tuple) else (value,)
    return any(
        isinstance(part, Tensor) and (part.is_floating_point() or part.is_complex())
        for part in values
    )


def computes_sizes(node: Node) -> bool:
    """Return whether a node computes with sizes instead of tensors."""
    return isinstance(node.meta.get("val"), int | torch.SymInt | torch.SymBool | torch.SymFloat)


_FRESH = frozenset(
    f"aten::{name}"
    for name in (
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("linear", "addmm", "mm", "batch_norm", "add", "sub", "mul", "cat"),
    )
)
"""Operations that return a new tensor, never their input or a view of it."""


def remove_inplace(program: ExportedProgram, *, may_modify: bool) -> ExportedProgram:
    """Replace in-place operations, such as `relu_`, by functional ones.

    Running torch.export's functionalisation costs as much as the export itself. In practice, nearly
    every in-place operation is an activation on a new tensor that nothing else reads, and can
    simply be renamed. The full pass runs only if there is another in-place operation, or if the
    program must not be modified.
    """
    mutating = [node for node in program.graph.nodes if _mutates(node)]
    if not mutating:
        return program
    functional = {node: _functional_overload(node) for node in mutating}
    can_rename = all(functional[node] is not None and _is_only_reader(node) for node in mutating)
    if may_modify and can_rename:
        for node, overload in functional.items():
            node.target = overload
        return program
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return program.run_decompositions({})


def _mutates(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _functional_overload(node: Node) -> OpOverload | None:
    """Return the functional form of an in-place operation, `aten.relu` for `aten.relu_`."""
    assert isinstance(node.target, OpOverload)
    name = node.target._schema.name.removeprefix("aten::")
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.endswith("_") else None
    return getattr(packet, node.target._overloadname, None)


def _is_only_reader(node: Node) -> bool:
    """Return whether nothing else reads the tensor that the node overwrites, or a view of it."""
    source = node.args[0]
    if not isinstance(source, Node) or not isinstance(source.target, OpOverload):
        return False
    # The result of an in-place operation that was the only reader of a new tensor counts as new.
    is_new = source.target._schema.name.removesuffix("_") in _FRESH
    return is_new and list(source.users) == [node]
