"""A model as a graph of ATen operations, by `torch.export`.

The graph is exported once for all batch sizes and reads the model's own parameters. Hooks would
miss `F.relu`, a module used twice, an in-place activation or a bare `x + y`; the graph has all.

    >>> capture(model, images).batch is None               # it serves any number of images
    True
"""

import inspect
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, Node

from dmbp.errors import CaptureError, DMBPError, ModelError, UnsupportedOperation
from dmbp.linear.adapted import Adapted, with_own_names
from dmbp.linear.held import Held
from dmbp.linear.inplace import without_inplace
from dmbp.linear.one_at_a_time import OneAtATime
from dmbp.linear.quiet import quietly
from dmbp.linear.rules import RULES, operation_name

Model = nn.Module | ExportedProgram


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
        captured = _read(_known_operations(without_inplace(model, ours=False)))
        if captured.batch not in (None, len(inputs)):
            raise CaptureError(
                f"the program was exported for batches of {captured.batch}, not {len(inputs)}; "
                "export it with a dynamic batch dimension"
            )
        return captured
    # A batch of one would be taken for a constant of the model.
    several = inputs if len(inputs) > 1 else inputs.expand(2, *inputs.shape[1:]).clone()
    try:
        captured = _read(_known_operations(_export(model, several, held, is_dynamic=True)))
    except CaptureError:
        raise
    except ModelError:
        if len(inputs) > 1:
            raise
        captured = None  # it takes one image at a time
    if captured is not None and captured.batch in (None, len(inputs)):
        return captured
    # Or the model counts its images in Python, say by int(x.shape[0]).
    return _read(_known_operations(_export(model, inputs, held, is_dynamic=False)))


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
            stacklevel=3,
        )
    return _for_any_number(inner) if isinstance(inner, ExportedProgram) else inner


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


def module_path(node: Node) -> str:
    """Where in the model an operation stands: `layer1.0.relu`; empty at the top."""
    stack: Mapping[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    return path.partition("@")[0]  # "@1" marks a module's second call


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


def _known_operations(program: ExportedProgram) -> ExportedProgram:
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


NO_RULE = "it has no rule"


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


_LAST_LAYERS = ("aten.softmax.int", "aten._softmax.default", "aten._safe_softmax.default")


def constant_output(output: Node) -> UnsupportedOperation:
    """The exception for an output that is a constant once all is frozen: a softmax's, as a rule."""
    node = output
    while operation_name(node.target) not in _LAST_LAYERS and node.all_input_nodes:
        node = node.all_input_nodes[0]
    last = node if operation_name(node.target) in _LAST_LAYERS else output
    return unsupported(last, "held as it is, it leaves an output that does not depend on the input")


def all_unsupported(refused: Sequence[tuple[Node, str]]) -> UnsupportedOperation:
    """The exception for operations that cannot be frozen, each once a place: the first of them."""
    found: dict[tuple[str, str], UnsupportedOperation] = {}
    for node, why in refused:
        found.setdefault((operation_name(node.target), module_path(node)), unsupported(node, why))
    first, *others = found.values()
    return UnsupportedOperation(
        str(first), operation=first.operation, module=first.module, others=tuple(others)
    )


def unsupported(node: Node, reason: str) -> UnsupportedOperation:
    """The exception for an operation that cannot be frozen, naming it and its place."""
    place = module_path(node)
    where = f"at '{place}'" if place else "at the top of the model"
    name = operation_name(node.target)
    hint = ""
    if name in _LAST_LAYERS:
        hint = "If it is the last layer, explain the model without it: the scores before it. "
    return UnsupportedOperation(
        f"{name} {where} cannot be frozen at an input: {reason}. {hint}"
        "Supported operations: dmbp.linear.rules; CONTRIBUTING.md shows how to add one.",
        operation=name,
        module=place,
    )


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
