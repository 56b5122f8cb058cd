"""What steps add to activations, for those where that is known.

    W h + b         a convolution, a product, a batch norm add something by channel
    h + h', cat …   others nothing, where all that they are given are activations

Nothing is known here of any other step: what depends on it goes another way.

Reads the terms and linear maps out at some masks, without autograd and its memory.

    score = ⟨∇x, x⟩ + Σ ⟨∇v, added⟩          over the results v of steps that add something

Where it is known what all steps add (`added`) the way back gives the terms too, as it does in the
paper's Algorithm 1; else they are computed forward.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from dmbp.engine.autograd import masked_streams
from dmbp.engine.base import Logits, Readout, Terms
from dmbp.engine.plan.gates import pass_gate
from dmbp.engine.plan.operations import MAX_POOL
from dmbp.engine.plan.plan import ExecutionPlan, GradientAtGate, plan_of
from dmbp.engine.plan.rewrites import BATCH_NORM, CONVOLUTION, scale_and_shift
from dmbp.engine.plan.streams import Value, by_stream, stacked
from dmbp.linear import LinearNetwork
from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.steps import Slot, Step

PRODUCT = "aten.linear.default"

ADDED = {CONVOLUTION: (2,), PRODUCT: (2,), BATCH_NORM: (2, 3)}
"""The places of arguments that are in the unit of activations: biases, and means taken off."""

LINEAR = {
    MAX_POOL,
    "aten.add.Tensor",
    "aten.cat.default",
    "aten.adaptive_avg_pool2d.default",
    "aten.avg_pool2d.default",
    "aten.flatten.using_ints",
    "aten.mean.dim",
}
"""Operations that add nothing, where all that they are given are activations."""


def is_known(step: Step) -> bool:
    """Whether it is known what a step adds; a gate adds what its pieces do at zero."""
    if step.site is not None:
        return isinstance(step.function, ElementwiseLine) and step.function.offset is None
    if step.keywords:
        return False
    if step.operation in ADDED:
        return len(step.reads) == 1 and isinstance(step.arguments[0], Slot)
    return step.operation in LINEAR and not _adds(step)


def share_of(step: Step, gradient: Tensor) -> Tensor | None:
    """What a known step adds to the scores of all rows, by their gradient in its result."""
    if step.operation not in ADDED:
        return None
    if step.operation == BATCH_NORM:
        added = scale_and_shift(step)[1]
    else:
        added = step.arguments[2] if len(step.arguments) > 2 else None
    if added is None:
        return None
    if gradient.dim() > 2:
        last = step.operation == PRODUCT
        gradient = gradient.flatten(1, -2).sum(1) if last else gradient.flatten(2).sum(2)
    return torch.mv(gradient, added)


def _adds(step: Step) -> bool:
    """Whether a sum or concatenation has a part that is no activation."""
    if step.operation == "aten.add.Tensor":
        return not all(isinstance(part, Slot) for part in step.arguments)
    if step.operation == "aten.cat.default":
        return not all(isinstance(part, Slot) for part in step.arguments[0])
    return False


@torch.no_grad()
def read_out(
    net: LinearNetwork, output: Tensor, logits: Callable[[], Logits], at_gate: GradientAtGate
) -> Readout:
    """The terms and linear maps of `net` at the masks sigmoid(logits), which `at_gate` applies."""
    plan = plan_of(net)
    if not _is_sum(plan):
        maps = by_stream(plan.pull_back(at_gate)).contiguous()
        positive, negative = masked_streams(net, [net.inputs, net.inputs], logits())
        return Readout(Terms(output, positive, negative), maps[0], maps[1])
    shares = [torch.cat([net.constant, net.constant])]

    def at_step(step: Step, gradient: Value) -> None:
        share = share_of(step, stacked(gradient))
        if share is not None:
            shares.append(share)

    maps = by_stream(plan.pull_back(at_gate, at_step)).contiguous()
    of_inputs = (maps * net.inputs).flatten(2).sum(2)
    positive, negative = of_inputs + by_stream(torch.stack(shares).sum(0))
    return Readout(Terms(output, positive, negative), maps[0], maps[1])


def past_masks(logits: Logits) -> GradientAtGate:
    """Both streams' gradients past gates with the masks sigmoid(logits)."""

    def at_gate(step: Step, gradient: Tensor) -> Tensor:
        assert isinstance(step.function, ElementwiseLine)
        assert step.site is not None
        return pass_gate(gradient, step.function.slope, logits.get(step.site.name))

    return at_gate


def _is_sum(plan: ExecutionPlan) -> bool:
    """Whether it is known of all steps what they add."""
    return all(is_known(planned.step) for planned in plan.steps)
