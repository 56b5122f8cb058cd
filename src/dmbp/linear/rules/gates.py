"""Piecewise linear activations: at x, each element lies on one piece, a slope and an offset.

    φ(z) = slope(x) ⊙ z + offset(x)         exactly, at x

ReLU's slope is the Heaviside step of the paper's Eq. 3, zero at zero. Where an activation saturates
(ReLU6 at six) the offset carries the value and counts as a bias. Outputs of gates are the sites
that masks sit on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.rules.base import Function, OperationCall, Place, Role, Rule


@dataclass(frozen=True)
class Gate(Rule):
    """An activation function, given by the piece that each element is on."""

    kind = "gate"
    piece: Callable[..., ElementwiseLine]

    def masks(self, call: OperationCall) -> bool:
        """Outputs of activations are what masks sit on."""
        return True

    def role(self, call: OperationCall) -> Role:
        """That of an activation; a norm kept away from zero is still a norm."""
        return max(Role.ACTIVATION, super().role(call))

    def refusal(self, call: OperationCall) -> str | None:
        """Why this call is no gate, or None."""
        if call.active != frozenset[Place]({0}):
            return "its settings depend on the input"
        return "it is random" if any(value is True for value in call.arguments[1:]) else None

    def freeze(self, call: OperationCall) -> Function:
        """The piece at x."""
        return self.piece(*call.arguments, **call.keywords)


def _where(condition: Tensor, yes: Any, no: Any, like: Tensor) -> Tensor:
    """`torch.where` in the activation's own precision: bare numbers would pass through float32."""

    def cast(value: Any) -> Tensor:  # without a copy from the CPU, which no CUDA graph can hold
        return value.to(like) if isinstance(value, Tensor) else like.new_full((), value)

    return torch.where(condition, cast(yes), cast(no))


def _relu(z: Tensor) -> ElementwiseLine:
    return ElementwiseLine(z > 0)


def _leaky_relu(z: Tensor, negative_slope: float = 0.01) -> ElementwiseLine:
    return ElementwiseLine(_where(z > 0, 1.0, negative_slope, z))


def _prelu(z: Tensor, weight: Tensor) -> ElementwiseLine:
    per_channel = weight.reshape(-1, *(1,) * (z.dim() - 2)) if z.dim() > 1 else weight
    return ElementwiseLine(_where(z > 0, 1.0, per_channel, z))


def _prelu_kernel(z: Tensor, weight: Tensor) -> ElementwiseLine:
    return ElementwiseLine(_where(z > 0, 1.0, weight, z))


def _rrelu(z: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, *_: object) -> ElementwiseLine:
    return _leaky_relu(z, (lower + upper) / 2)


def _clamp(z: Tensor, min: Any = None, max: Any = None) -> ElementwiseLine:
    """A clamp lets its limits pass, as its gradient in PyTorch does: white pixels are not lost."""
    offset = torch.zeros_like(z)
    inside = torch.ones_like(z, dtype=torch.bool)
    if min is not None:
        inside, offset = z >= min, _where(z >= min, offset, min, z)
    if max is not None:
        inside, offset = inside & (z <= max), _where(z <= max, offset, max, z)
    return ElementwiseLine(inside, offset)


def _hardtanh(z: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> ElementwiseLine:
    """At its limits it saturates, as its gradient in PyTorch does."""
    offset = _where(z <= min_val, min_val, _where(z >= max_val, max_val, 0.0, z), z)
    return ElementwiseLine((z > min_val) & (z < max_val), offset)


def _relu6(z: Tensor) -> ElementwiseLine:
    return _hardtanh(z, 0.0, 6.0)


def _clamp_max(z: Tensor, max: Any) -> ElementwiseLine:
    return _clamp(z, None, max)


def _threshold(z: Tensor, threshold: float, value: float) -> ElementwiseLine:
    return ElementwiseLine(z > threshold, _where(z > threshold, 0.0, value, z))


def _absolute(z: Tensor) -> ElementwiseLine:
    return ElementwiseLine(torch.sign(z))


def _softshrink(z: Tensor, lambd: float = 0.5) -> ElementwiseLine:
    outside = z.abs() > lambd
    return ElementwiseLine(outside, _where(outside, -lambd * torch.sign(z), 0.0, z))


def _hardshrink(z: Tensor, lambd: float = 0.5) -> ElementwiseLine:
    return ElementwiseLine(z.abs() > lambd)


GATES: Mapping[str, Gate] = {
    "aten.relu.default": Gate(_relu),
    "aten.relu6.default": Gate(_relu6),
    "aten.leaky_relu.default": Gate(_leaky_relu),
    "aten.prelu.default": Gate(_prelu),
    "aten._prelu_kernel.default": Gate(_prelu_kernel),
    "aten.rrelu.default": Gate(_rrelu),
    "aten.hardtanh.default": Gate(_hardtanh),
    "aten.clamp.default": Gate(_clamp),
    "aten.clamp.Tensor": Gate(_clamp),
    "aten.clamp_min.default": Gate(_clamp),
    "aten.clamp_min.Tensor": Gate(_clamp),
    "aten.clamp_max.default": Gate(_clamp_max),
    "aten.clamp_max.Tensor": Gate(_clamp_max),
    "aten.threshold.default": Gate(_threshold),
    "aten.abs.default": Gate(_absolute),
    "aten.softshrink.default": Gate(_softshrink),
    "aten.hardshrink.default": Gate(_hardshrink),
}
