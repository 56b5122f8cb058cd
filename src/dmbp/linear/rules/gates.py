"""Piecewise linear activations: at x, every element lies on one piece, a slope and an offset.

    φ(z) = slope(x) ⊙ z + offset(x)         exactly, at x

ReLU's slope is the Heaviside step of the paper's Eq. 3, zero at zero. Where an activation saturates
(ReLU6 at six), the slope is zero, and the offset holds the value and counts as a bias. Outputs of
gates are sites: they carry masks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.rules.base import Function, OperationCall, Role, Rule, refuse_active_settings


@dataclass(frozen=True)
class Gate(Rule):
    """A piecewise linear activation; `line` returns each element's piece from the arguments."""

    kind = "gate"
    line: Callable[..., ElementwiseLine]

    def freeze(self, call: OperationCall) -> Function:
        """Return the pieces at x."""
        return self.line(*call.arguments, **call.keywords)

    def refusal(self, call: OperationCall) -> str | None:
        """Return why this call is not a fixed function of one activation, or None."""
        reason = refuse_active_settings(call)
        if reason is not None:
            return reason
        # The only flag among the arguments of gates is `training` of `rrelu`.
        return "it is random" if any(value is True for value in call.arguments[1:]) else None

    def is_site(self, call: OperationCall) -> bool:
        """Return True: the outputs of activations carry masks."""
        return True

    def role(self, call: OperationCall) -> Role:
        """Return at least an activation's role; a norm that is clamped above zero stays a norm."""
        return max(Role.ACTIVATION, super().role(call))


def _where(condition: Tensor, yes: Any, no: Any, like: Tensor) -> Tensor:
    """Apply `torch.where` in the dtype of `like`; plain numbers would become float32."""

    def cast(value: Any) -> Tensor:
        # `new_full` copies nothing from the CPU, so a CUDA graph can record it.
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
    """Return the pieces; the slope at the limits is one, as in PyTorch, so white pixels count."""
    offset = torch.zeros_like(z)
    inside = torch.ones_like(z, dtype=torch.bool)
    if min is not None:
        inside, offset = z >= min, _where(z >= min, offset, min, z)
    if max is not None:
        inside, offset = inside & (z <= max), _where(z <= max, offset, max, z)
    return ElementwiseLine(inside, offset)


def _hardtanh(z: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> ElementwiseLine:
    """Return the pieces; at the limits the slope is zero, as in PyTorch's gradient."""
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
