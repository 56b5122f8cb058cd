"""The engine that supports every network: autograd on any device and in any dtype.

The faster engines are tested against it. Both streams pass through the network side by side, the
positive one masked by σ and the negative one by 1−σ. Their graphs share only the masks, so a
stream whose seed is zero in every row needs no backward pass: the paper's loss has the seeds
(−2, 0) if y~ > 0 and (0, 2) if y~ < 0.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dmbp.engine.base import (
    RMSPROP_DECAY,
    RMSPROP_EPSILON,
    Logits,
    Loss,
    OnIteration,
    Readout,
    Terms,
    learn_by_steps,
)
from dmbp.engine.gradients import vector_products
from dmbp.engine.plan.plan import ExecutionPlan
from dmbp.linear import LinearNetwork, Site


class AutogradEngine:
    """Learns the masks of a linear network with autograd, starting from `logits`."""

    def __init__(
        self, plan: ExecutionPlan, logits: Logits, *, loss: Loss, learning_rate: float
    ) -> None:
        net = plan.net
        self._net = net
        # Half precision cannot hold RMSProp's squared gradients. The copy is updated in place.
        dtype = torch.promote_types(net.inputs.dtype, torch.float32)
        self._logits = {n: t.detach().to(dtype, copy=True) for n, t in logits.items()}
        self._loss = loss
        self._optimizer = torch.optim.RMSprop(
            list(self._logits.values()), lr=learning_rate, alpha=RMSPROP_DECAY, eps=RMSPROP_EPSILON
        )
        with torch.no_grad():
            self._output = net.value()

    @property
    def logits(self) -> Logits:
        """The current value of the learned scalars."""
        return self._logits

    @torch.enable_grad()
    def step(self) -> Terms:
        """Run one iteration of RMSProp and return the terms before it."""
        for tensor in self._logits.values():
            tensor.requires_grad_(True)
        streams = self._streams([self._net.inputs, self._net.inputs])
        terms = Terms(self._output, *(stream.detach() for stream in streams))
        self._descend(streams, self._loss.seeds(terms))
        return terms

    def learn(self, iterations: int, on_iteration: OnIteration = None) -> Terms:
        """Run `iterations` iterations and return the terms before each, (iterations, rows)."""
        return learn_by_steps(self.step, self._output, iterations, on_iteration)

    def readout(self) -> Readout:
        """Return the terms and linear maps at the current masks."""
        inputs = [self._net.inputs.detach().clone().requires_grad_() for _ in range(2)]
        with torch.enable_grad():
            positive, negative = self._streams(inputs)
            maps = torch.autograd.grad([positive.sum(), negative.sum()], inputs)
        return Readout(Terms(self._output, positive.detach(), negative.detach()), *maps)

    def is_in_range(self, past: Terms) -> bool:  # noqa: ARG002
        """Return True: masks are learned in the network's own precision."""
        return True

    def _streams(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return masked_streams(self._net, inputs, self._logits)

    def _descend(self, streams: Sequence[Tensor], seeds: Tensor) -> None:
        active = [k for k, seed in enumerate(seeds) if bool(seed.any())]
        logits = list(self._logits.values())
        gradients = vector_products(
            [streams[k] for k in active], logits, [seeds[k] for k in active]
        )
        for tensor, gradient in zip(logits, gradients, strict=True):
            tensor.grad = gradient
        self._optimizer.step()


def masked_streams(net: LinearNetwork, inputs: Sequence[Tensor], logits: Logits) -> list[Tensor]:
    """Return the scores of two inputs, (rows,) each, masked by σ and 1−σ respectively."""

    def at_site(site: Site, streams: list[Tensor]) -> list[Tensor]:
        if site.name not in logits:
            return streams
        positive, negative = streams
        mask = torch.sigmoid(logits[site.name]).to(positive.dtype)
        return [positive * mask, negative * (1 - mask)]

    return net.propagate(inputs, at_site)
