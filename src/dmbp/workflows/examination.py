"""The most memory that a piece of work takes beyond what was in use before it.

    peak = measured(lambda: torch.ones(2**22), torch.device("cpu"))
    peak.bytes, peak.what                # (16 MiB or a little more, 'resident growth of …')

On a GPU torch counts what it allocates. On a CPU nobody does; Linux keeps the high-water mark of a
process's resident memory, which counts libraries' workspaces too, and not what was lying free
inside the process before.

What dmbp makes of a model: its operations and their rules, its sites, what they cost to learn.

    >>> found = examine(model, images)
    >>> found.exactness, found.sites[0].name, found.refusal
    (0.0, '1', None)

A model that is refused is examined too: every operation without a rule, its place, and what to do
about it; or, where all have one, every operation that its rule refuses.
"""

import ctypes
import gc
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from dmbp.decompose import PRESETS
from dmbp.decompose.learn import make_engine
from dmbp.engine import plan_for
from dmbp.errors import DMBPError, SiteError, UnsupportedOperation
from dmbp.linear import Linearizer, LinearNetwork, Selection, Site, Smoothing
from dmbp.linear.capture.composite import rule_of
from dmbp.linear.capture.export import CapturedGraph
from dmbp.linear.freeze.freeze import IDENTITY
from dmbp.linear.model.wrappers import Model
from dmbp.linear.rules.table import IN_TRAINING, operation_name
from dmbp.precision import TOLERANCE

ALLOCATED = "allocated by torch.cuda"
RESIDENT = "resident growth of the process"

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_HIGHEST = "5"
"""What sets the high-water mark to the present (proc(5))."""


@dataclass(frozen=True)
class Peak:
    """A number of bytes, and what it counts."""

    bytes: int
    what: str


def measured(work: Callable[[], object], device: torch.device) -> Peak | None:
    """The peak of some work on a device; None where the system does not tell."""
    gc.collect()
    return _on_cuda(work, device) if device.type == "cuda" else _resident(work)


def _on_cuda(work: Callable[[], object], device: torch.device) -> Peak:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return Peak(torch.cuda.max_memory_allocated(device) - before, ALLOCATED)


def _resident(work: Callable[[], object]) -> Peak | None:
    _give_back()
    try:
        _CLEAR.write_text(_RESET_HIGHEST)
        before = _kibibytes("VmRSS")
    except OSError:  # no Linux, or none that lets a process look at itself
        work()
        return None
    work()
    return Peak(1024 * max(0, _kibibytes("VmHWM") - before), RESIDENT)


def _give_back() -> None:
    """Return what is free inside the process to the system: taken anew it would not count."""
    with suppress(OSError, AttributeError):  # the GNU C library has it, others need it less
        ctypes.CDLL(None).malloc_trim(0)


def _kibibytes(name: str) -> int:
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return int(lines[name].split()[0])


ITERATIONS = 3
"""That are timed, after one that is not."""

OWN_RULE = "add a rule for it, as CONTRIBUTING.md shows, or replace it in the model"

SUGGESTIONS: Mapping[str, str] = {
    "aten.fft_": (
        "a Fourier transform is linear, but its values are complex: write it as products with the "
        "matrices of cosines and sines, or give the model its result as the input"
    ),
    "aten.softmax": "explain the scores before it: leave the last layer out",
    "aten.batch_norm": IN_TRAINING,
    "aten._native_batch_norm_legit": IN_TRAINING,
    "aten.dropout": IN_TRAINING,
    "aten.lstm": "recurrent layers multiply gates over time: explain the layers after them",
    "aten.gru": "recurrent layers multiply gates over time: explain the layers after them",
}
"""What to do about operations, by the beginning of their names."""


@dataclass(frozen=True)
class RefusedOperation:
    """An operation that cannot be frozen, where it stands and what to do about it.

    `module` is empty at the top of the model.
    """

    operation: str
    module: str
    suggestion: str


@dataclass(frozen=True)
class Refusal:
    """Why a model cannot be explained; the operations at fault, where it is theirs, in order."""

    message: str
    operations: tuple[RefusedOperation, ...] = ()


@dataclass(frozen=True)
class LearningCost:
    """Which engine learns the masks and why, and what that takes.

    `memory` is the peak of freezing, learning and reading out, beyond what the model itself holds;
    None where it cannot be measured.
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

    `operations` counts the linear network's by kind of rule and by name; `dropped` those of the
    model that depend on the input and are held at x, so that they are no part of it.
    """

    input: tuple[int, ...]
    dtype: str
    operations: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Any])
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])
    sites: tuple[Site, ...] = ()
    exactness: float | None = None
    tolerance: float | None = None
    capture_seconds: float = 0.0
    learning: LearningCost | None = None
    refusal: Refusal | None = None

    def record(self) -> dict[str, Any]:
        """All of it, for a JSON file."""
        return asdict(self)


def examine(
    model: Model, inputs: Tensor, *, smooth: Smoothing = "tangent", sites: Selection = None
) -> Examination:
    """Capture a model at one input, and learn its masks for a few iterations.

    `smooth` and `sites` are as for `dmbp.linearize`; sites that are not there are the caller's
    mistake, and no refusal of the model.
    """
    form: Any = {"input": tuple(inputs.shape), "dtype": str(inputs.dtype).removeprefix("torch.")}
    linearizer = Linearizer(model, smooth=smooth, sites=sites)
    try:
        started = time.perf_counter()
        net = linearizer.linearize(inputs)
        seconds = time.perf_counter() - started
        captured = linearizer.captured(inputs)
        assert captured is not None
        return Examination(
            **form,
            operations=_operations(net),
            dropped=_dropped(captured, net),
            sites=net.sites,
            exactness=net.exactness,
            tolerance=TOLERANCE[inputs.dtype],
            capture_seconds=seconds,
            learning=_learning(linearizer, net),
        )
    except SiteError:
        raise
    except DMBPError as error:
        return Examination(**form, refusal=_refusal(error))


def _operations(net: LinearNetwork) -> dict[str, dict[str, int]]:
    counted: dict[str, Counter[str]] = {}
    for step in net.frozen.steps:
        if step.operation != IDENTITY:
            counted.setdefault(step.kind, Counter())[step.operation] += 1
    return {kind: dict(names.most_common()) for kind, names in counted.items()}


def _dropped(captured: CapturedGraph, net: LinearNetwork) -> dict[str, int]:
    kept = {step.name for step in net.frozen.steps}
    left = [n.target for n in _active(captured) if n.name not in kept]
    names = [operation_name(target) for target in left if rule_of(target) is not None]
    return dict(Counter(names).most_common())


def _active(captured: CapturedGraph) -> Iterator[Node]:
    """The operations on tensors that depend on the input."""
    active = {captured.input}
    for node in captured.graph.nodes:
        is_size = isinstance(node.meta.get("val"), int | torch.SymInt)
        reads = node.op == "call_function" and active.intersection(node.all_input_nodes)
        if reads and not is_size:
            active.add(node)
            yield node


def _learning(linearizer: Linearizer, net: LinearNetwork) -> LearningCost | None:
    """None where the network has no site, and nothing is learned."""
    if not net.sites:
        return None
    elements = sum(math.prod(site.shape) for site in net.sites)
    size = elements * net.inputs.element_size()
    name, seconds = _timed(net)
    inputs, reason = net.inputs, _reason(net, name)
    del net  # what it holds is measured as it is made anew
    peak = measured(lambda: _whole(linearizer, inputs), inputs.device)
    return LearningCost(name, reason, elements, size, seconds, peak)


def _timed(net: LinearNetwork) -> tuple[str, float]:
    """The name of the engine, and the seconds that it takes for an iteration."""
    engine = make_engine(plan_for(net), PRESETS["fast"])
    engine.learn(1)
    _wait(net.inputs)
    started = time.perf_counter()
    engine.learn(ITERATIONS)
    _wait(net.inputs)
    seconds = (time.perf_counter() - started) / ITERATIONS
    return type(engine).__name__.removesuffix("Engine").lower(), seconds


def _whole(linearizer: Linearizer, inputs: Tensor) -> None:
    """An explanation from freezing to reading out; more iterations would take no more memory."""
    engine = make_engine(plan_for(linearizer.linearize(inputs)), PRESETS["fast"])
    engine.learn(ITERATIONS)
    engine.readout()


def _reason(net: LinearNetwork, engine: str) -> str:
    where = f"{str(net.inputs.dtype).removeprefix('torch.')} on {net.inputs.device.type}"
    plan = plan_for(net)
    if engine != "autograd":
        place = "stay in the first dimension" if plan.rows_first else "are followed to every mask"
        return f"{where}, images {place}"
    if not plan.rows_known:
        return "images cannot be followed to every mask"
    if net.inputs.is_cuda and not plan.rows_first:
        return "images leave the first dimension before a mask"
    return f"no other engine is for {where}"


def _wait(inputs: Tensor) -> None:
    if inputs.is_cuda:
        torch.cuda.synchronize(inputs.device)


def _refusal(error: DMBPError) -> Refusal:
    if not isinstance(error, UnsupportedOperation):
        return Refusal(str(error))
    return Refusal(str(error), tuple(_refused(one) for one in (error, *error.others)))


def _refused(error: UnsupportedOperation) -> RefusedOperation:
    known = [hint for start, hint in SUGGESTIONS.items() if error.operation.startswith(start)]
    return RefusedOperation(error.operation, error.module, [*known, OWN_RULE][0])
