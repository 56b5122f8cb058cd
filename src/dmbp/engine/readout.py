"""Reads the terms and linear maps out at some masks, without autograd and its memory."""

from collections.abc import Callable

import torch
from torch import Tensor

from dmbp.engine.engine import Logits
from dmbp.engine.plan import plan_of
from dmbp.engine.reference import masked_streams
from dmbp.engine.streams import by_stream
from dmbp.engine.terms import Readout, Terms
from dmbp.linear import LinearNetwork
from dmbp.linear.piece import Piece
from dmbp.linear.step import Step


@torch.no_grad()
def read_out(
    net: LinearNetwork,
    logits: Logits,
    output: Tensor,
    *,
    see: Callable[[Tensor], None] | None = None,
) -> Readout:
    """The terms and linear maps of `net` at the masks sigmoid(logits).

    What is to `see` is shown the gradient of both streams, stacked, at every site.
    """

    def at_gate(step: Step, gradient: Tensor) -> Tensor:
        assert isinstance(step.function, Piece)
        assert step.site is not None
        if see is not None:
            see(gradient)
        sloped = by_stream(gradient) * step.function.slope
        if step.site.name in logits:
            mask = torch.sigmoid(logits[step.site.name]).to(gradient.dtype)
            sloped = torch.stack([sloped[0] * mask, sloped[1] * (1 - mask)])
        return sloped.flatten(0, 1)

    positive, negative = masked_streams(net, [net.inputs, net.inputs], logits)
    maps = by_stream(plan_of(net).pull_back(at_gate)).contiguous()
    return Readout(Terms(output, positive, negative), maps[0], maps[1])
