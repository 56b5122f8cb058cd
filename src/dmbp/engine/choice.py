"""Which engine learns the masks of a network."""

import torch

from dmbp.engine.engine import Engine, Logits
from dmbp.engine.fast import FastEngine
from dmbp.engine.loss import Loss
from dmbp.engine.reference import ReferenceEngine
from dmbp.linear import LinearNetwork


def engine_for(net: LinearNetwork, logits: Logits, *, loss: Loss, learning_rate: float) -> Engine:
    """The fastest engine there is for a network on its device and in its precision."""
    fast = net.inputs.device.type == "cpu" and net.inputs.dtype in (torch.float32, torch.float64)
    kind = FastEngine if fast else ReferenceEngine
    return kind(net, logits, loss=loss, learning_rate=learning_rate)
