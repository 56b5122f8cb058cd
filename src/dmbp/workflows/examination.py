"""Examine a model: its operations and their rules, its sites, and what learning masks costs.

    >>> examination = examine(model, images)
    >>> examination.exactness, examination.sites[0].name, examination.refusal
    (0.0, '1', None)

A model that cannot be explained is examined, too. The refusal then lists every operation without a
rule, its module and what to do about it; if all have rules, every operation that its rule refuses.
"""

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from dmbp.decompose import PRESETS
from dmbp.decompose.learn import make_engine
from dmbp.devices import synchronise
from dmbp.engine import plan_for
from dmbp.errors import DMBPError, SiteError, UnsupportedOperation
from dmbp.linear import Linearizer, LinearNetwork, Selection, Site, Smoothing
from dmbp.linear.capture.composite import rule_for
from dmbp.linear.capture.export import CapturedGraph
from dmbp.linear.freeze.freeze import IDENTITY
from dmbp.linear.model.wrappers import Model
from dmbp.linear.rules.table import operation_name
from dmbp.precision import TOLERANCE
from dmbp.process import Peak, measure_peak

ITERATIONS = 3
"""How many iterations are timed, after one warm-up."""


@dataclass(frozen=True)
class RefusedOperation:
    """An operation that cannot be frozen, its module and what to do about it.

    `module` is empty for the model itself.
    """

    operation: str
    module: str
    suggestion: str


@dataclass(frozen=True)
class Refusal:
    """Why a model cannot be explained, and the operations that prevent it, if any."""

    message: str
    operations: tuple[RefusedOperation, ...] = ()


@dataclass(frozen=True)
class LearningCost:
    """Which engine learns the masks and why, and what that costs.

    `memory` is the peak of freezing, learning and reading out, on top of the model itself; None if
    it cannot be measured.
    """

    engine: str
    reason: str
    mask_elements: int
    mask_bytes: int
    seconds_an_iteration: float
    memory: Peak | None


@dataclass(frozen=True)
class Examination:
    """A model captured at one input.

    `operations` counts the linear network's operations by kind of rule and by name. `dropped`
    counts those that depend on the input but are frozen at x, such as attention weights, so that
    the linear network does without them.
    """

    input: tuple[int, ...]
    dtype: str
    output: tuple[int, ...] = ()
    target: tuple[int, ...] | None = None
    operations: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Any])
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])
    sites: tuple[Site, ...] = ()
    exactness: float | None = None
    tolerance: float | None = None
    capture_seconds: float = 0.0
    learning: LearningCost | None = None
    refusal: Refusal | None = None

    def record(self) -> dict[str, Any]:
        """Return all fields as plain values, for JSON."""
        return asdict(self)


def examine(
    model: Model, inputs: Tensor, *, smooth: Smoothing = "tangent", sites: Selection = None
) -> Examination:
    """Capture a model at one input, and learn its masks for a few iterations.

    `smooth` and `sites` are as for `dmbp.linearize`.

    Raises:
        SiteError: If the model has no such sites; this is the caller's mistake, not a refusal.
    """
    input_form: Any = {
        "input": tuple(inputs.shape),
        "dtype": str(inputs.dtype).removeprefix("torch."),
    }
    linearizer = Linearizer(model, smooth=smooth, sites=sites)
    try:
        started = time.perf_counter()
        output, target = _strongest_output(linearizer, inputs)
        net = linearizer.linearize(inputs, target=target)
        seconds = time.perf_counter() - started
        captured = linearizer.captured_graph(inputs)
        assert captured is not None
        return Examination(
            **input_form,
            output=output,
            target=target,
            operations=_count_operations(net),
            dropped=_count_dropped(captured, net),
            sites=net.sites,
            exactness=net.exactness,
            tolerance=TOLERANCE[inputs.dtype],
            capture_seconds=seconds,
            learning=_learning_cost(linearizer, net, target),
        )
    except SiteError:
        raise
    except DMBPError as error:
        return Examination(**input_form, refusal=_refusal(error))


def _count_operations(net: LinearNetwork) -> dict[str, dict[str, int]]:
    counted: dict[str, Counter[str]] = {}
    for step in net.frozen.steps:
        if step.operation != IDENTITY:
            counted.setdefault(step.kind, Counter())[step.operation] += 1
    return {kind: dict(names.most_common()) for kind, names in counted.items()}


def _count_dropped(captured: CapturedGraph, net: LinearNetwork) -> dict[str, int]:
    kept = {step.name for step in net.frozen.steps}
    dropped = [n.target for n in _active_nodes(captured) if n.name not in kept]
    names = [operation_name(target) for target in dropped if rule_for(target) is not None]
    return dict(Counter(names).most_common())


def _active_nodes(captured: CapturedGraph) -> Iterator[Node]:
    """Yield the operations on tensors that depend on the input."""
    active = {captured.input}
    for node in captured.graph.nodes:
        is_size = isinstance(node.meta.get("val"), int | torch.SymInt)
        reads = node.op == "call_function" and active.intersection(node.all_input_nodes)
        if reads and not is_size:
            active.add(node)
            yield node


def _strongest_output(
    linearizer: Linearizer, inputs: Tensor
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return the shape of an image's outputs, and the largest of them if it has dimensions."""
    outputs = linearizer.runner.outputs(linearizer.runner.check_inputs(inputs))
    form = linearizer.runner.form(inputs)
    assert form is not None
    if not form.has_several_dimensions:
        return form.shape, None
    index = torch.unravel_index(outputs[0].argmax(), form.shape)
    return form.shape, tuple(int(k) for k in index)


def _learning_cost(
    linearizer: Linearizer, net: LinearNetwork, target: tuple[int, ...] | None
) -> LearningCost | None:
    """Return what learning costs; None if the network has no sites, so that nothing is learned."""
    if not net.sites:
        return None
    elements = sum(math.prod(site.shape) for site in net.sites)
    size = elements * net.inputs.element_size()
    name, seconds = _time_iteration(net)
    inputs, reason = net.inputs, _reason(net, name)
    peak = measure_peak(lambda: _explain_once(linearizer, inputs, target), inputs.device)
    return LearningCost(name, reason, elements, size, seconds, peak)


def _time_iteration(net: LinearNetwork) -> tuple[str, float]:
    """Return the engine's name and the seconds that an iteration takes."""
    engine = make_engine(plan_for(net), PRESETS["fast"])
    engine.learn(1)
    synchronise(net.inputs.device)
    started = time.perf_counter()
    engine.learn(ITERATIONS)
    synchronise(net.inputs.device)
    seconds = (time.perf_counter() - started) / ITERATIONS
    return type(engine).__name__.removesuffix("Engine").lower(), seconds


def _explain_once(linearizer: Linearizer, inputs: Tensor, target: tuple[int, ...] | None) -> None:
    """Explain from freezing to reading out; more iterations would take no more memory."""
    engine = make_engine(plan_for(linearizer.linearize(inputs, target=target)), PRESETS["fast"])
    engine.learn(ITERATIONS)
    engine.readout()


def _reason(net: LinearNetwork, engine: str) -> str:
    """Return why this engine learns the masks."""
    where = f"{str(net.inputs.dtype).removeprefix('torch.')} on {net.inputs.device.type}"
    plan = plan_for(net)
    if engine != "autograd":
        layout = "stay in the first dimension" if plan.rows_first else "are followed to every mask"
        return f"{where}, images {layout}"
    if not plan.rows_known:
        return "images cannot be followed to every mask"
    if net.inputs.is_cuda and not plan.rows_first:
        return "images leave the first dimension before a mask"
    return f"no other engine supports {where}"


def _refusal(error: DMBPError) -> Refusal:
    if not isinstance(error, UnsupportedOperation):
        return Refusal(str(error))
    return Refusal(str(error), tuple(_refused_operation(each) for each in (error, *error.others)))


def _refused_operation(error: UnsupportedOperation) -> RefusedOperation:
    return RefusedOperation(error.operation, error.module, error.way_out)
