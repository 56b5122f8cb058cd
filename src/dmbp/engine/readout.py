"""Terms and linear maps at the current masks, without the memory that autograd would need.

    score = ⟨∇x, x⟩ + Σ ⟨∇v, b⟩          over the results v of steps that add a constant b

A convolution, a linear layer and a batch norm add a constant to each channel; a sum or a
concatenation of activations adds nothing. If this is known for every step (`has_known_constant`),
the backward pass that computes the maps gives the terms as well, as in the paper's Algorithm 1.
Otherwise a forward pass computes the terms.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from dmbp.engine.autograd import masked_streams
from dmbp.engine.base import Logits, Readout, Terms
from dmbp.engine.plan.kernels import MAX_POOL, Kernels
from dmbp.engine.plan.plan import ExecutionPlan, GradientAtGate
from dmbp.engine.plan.rewrites import BATCH_NORM, CONVOLUTION, scale_and_shift
from dmbp.engine.plan.streams import Value, by_stream, stacked
from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.steps import LinearStep, Slot

LINEAR = "aten.linear.default"

CONSTANT_ARGUMENTS = {CONVOLUTION: (2,), LINEAR: (2,), BATCH_NORM: (2, 3)}
"""Operations that add a constant, with the positions of the arguments that have an activation's
unit: biases and running means."""

WITHOUT_CONSTANT = {
    MAX_POOL,
    "aten.add.Tensor",
    "aten.cat.default",
    "aten.adaptive_avg_pool2d.default",
    "aten.avg_pool2d.default",
    "aten.flatten.using_ints",
    "aten.mean.dim",
}
"""Operations that add no constant if all of their inputs are activations."""


def has_known_constant(step: LinearStep) -> bool:
    """Return whether the constant that a step adds is known; a gate without offsets adds none."""
    if step.site is not None:
        return isinstance(step.function, ElementwiseLine) and step.function.offset is None
    if step.keywords:
        return False
    if step.operation in CONSTANT_ARGUMENTS:
        return len(step.reads) == 1 and isinstance(step.arguments[0], Slot)
    return step.operation in WITHOUT_CONSTANT and not _includes_constant(step)


def constant_contribution(step: LinearStep, gradient: Tensor) -> Tensor | None:
    """Return what a step's constant adds to the scores, (2 · rows,); None if it adds no constant.

    `gradient` is the gradient of both streams' scores with respect to the step's result.
    """
    if step.operation not in CONSTANT_ARGUMENTS:
        return None
    if step.operation == BATCH_NORM:
        constant = scale_and_shift(step)[1]
    else:
        constant = step.arguments[2] if len(step.arguments) > 2 else None
    if constant is None:
        return None
    if gradient.dim() > 2:
        is_linear = step.operation == LINEAR  # its channels are the last dimension
        gradient = gradient.flatten(1, -2).sum(1) if is_linear else gradient.flatten(2).sum(2)
    return torch.mv(gradient, constant)


def _includes_constant(step: LinearStep) -> bool:
    """Return whether a sum or concatenation includes a constant."""
    if step.operation == "aten.add.Tensor":
        return not all(isinstance(part, Slot) for part in step.arguments)
    if step.operation == "aten.cat.default":
        return not all(isinstance(part, Slot) for part in step.arguments[0])
    return False


@torch.no_grad()
def read_out(
    plan: ExecutionPlan, output: Tensor, logits: Callable[[], Logits], at_gate: GradientAtGate
) -> Readout:
    """Return the terms and linear maps at the current masks.

    Args:
        plan: The network's execution plan.
        output: The model's score of every row, (rows,).
        logits: Returns the current logits; called only if the terms need a forward pass.
        at_gate: Passes gradients through a gate and its current masks.
    """
    net = plan.net
    if not all(has_known_constant(planned.step) for planned in plan.steps):
        maps = by_stream(plan.pull_back(at_gate)).contiguous()
        positive, negative = masked_streams(net, [net.inputs, net.inputs], logits())
        return Readout(Terms(output, positive, negative), maps[0], maps[1])
    contributions = [torch.cat([net.constant, net.constant])]

    def at_step(step: LinearStep, gradient: Value) -> None:
        contribution = constant_contribution(step, stacked(gradient))
        if contribution is not None:
            contributions.append(contribution)

    maps = by_stream(plan.pull_back(at_gate, at_step)).contiguous()
    from_inputs = (maps * net.inputs).flatten(2).sum(2)
    positive, negative = from_inputs + by_stream(torch.stack(contributions).sum(0))
    return Readout(Terms(output, positive, negative), maps[0], maps[1])


def gate_with_masks(logits: Logits, kernels: Kernels) -> GradientAtGate:
    """Return a function that passes both streams' gradients through gates masked by the logits."""

    def at_gate(step: LinearStep, gradient: Tensor) -> Tensor:
        assert isinstance(step.function, ElementwiseLine)
        assert step.site is not None
        return kernels.pass_gate(gradient, step.function.slope, logits.get(step.site.name))

    return at_gate
