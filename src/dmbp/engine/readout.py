"""Reads the terms and linear maps out at some masks, without autograd and its memory.

    score = ⟨∇x, x⟩ + Σ ⟨∇v, added⟩          over the results v of steps that add something

Where it is known what all steps add (`added`) the way back gives the terms too, as it does in the
paper's Algorithm 1; else they are computed forward.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from dmbp.engine.added import is_known, share_of
from dmbp.engine.engine import Logits
from dmbp.engine.gates import pass_gate
from dmbp.engine.plan import AtGate, Plan, plan_of
from dmbp.engine.reference import masked_streams
from dmbp.engine.streams import Value, by_stream, stacked
from dmbp.engine.terms import Readout, Terms
from dmbp.linear import LinearNetwork
from dmbp.linear.piece import Piece
from dmbp.linear.step import Step


@torch.no_grad()
def read_out(
    net: LinearNetwork, output: Tensor, logits: Callable[[], Logits], at_gate: AtGate
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


def past_masks(logits: Logits) -> AtGate:
    """Both streams' gradients past gates with the masks sigmoid(logits)."""

    def at_gate(step: Step, gradient: Tensor) -> Tensor:
        assert isinstance(step.function, Piece)
        assert step.site is not None
        return pass_gate(gradient, step.function.slope, logits.get(step.site.name))

    return at_gate


def _is_sum(plan: Plan) -> bool:
    """Whether it is known of all steps what they add."""
    return all(is_known(planned.step) for planned in plan.steps)
