"""ONNX operators that work on each element: activations, arithmetic, comparisons, casts."""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dmbp.models.onnx.operators.call import Implementation, NodeCall

SIXTH = 1 / 6


def _unary(function: Callable[[Tensor], Tensor]) -> Implementation:
    return lambda call: function(call.tensor(0))


def _operand(call: NodeCall, position: int) -> Any:
    """Return an input; a list becomes a tensor, a number stays one and fits any tensor."""
    value = call.inputs[position]
    return call.tensor(position) if isinstance(value, list) else value


def _binary(function: Callable[[Any, Any], Tensor]) -> Implementation:
    return lambda call: function(_operand(call, 0), _operand(call, 1))


def _variadic(function: Callable[[Any, Any], Tensor]) -> Implementation:
    """Apply a function of two operands to any number of inputs, one after the other."""
    return lambda call: reduce(function, [_operand(call, k) for k in range(len(call.inputs))])


_sum = _variadic(lambda first, second: first + second)


def _divide(first: Any, second: Any) -> Any:
    quotient = first / second
    integers = [not torch.is_floating_point(torch.as_tensor(value)) for value in (first, second)]
    return quotient.trunc().to(torch.int64) if all(integers) else quotient


def _maximum_or_minimum(first: Any, second: Any, *, side: str) -> Tensor:
    """Return the larger (`side="min"`) or smaller (`side="max"`) of two operands.

    If one of them is a number, the other is clamped, which is how exporters write activations.
    """
    bounds = [value for value in (first, second) if not isinstance(value, Tensor)]
    if not bounds:
        return torch.maximum(first, second) if side == "min" else torch.minimum(first, second)
    activation = first if isinstance(first, Tensor) else second
    return torch.clamp(activation, **{side: bounds[0]})


def _clip(call: NodeCall) -> Tensor:
    low, high = (_number(call.setting(k, name)) for k, name in enumerate(("min", "max"), start=1))
    return (
        call.tensor(0) if low is None and high is None else torch.clamp(call.tensor(0), low, high)
    )


def _number(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


def _hard_sigmoid(call: NodeCall) -> Tensor:
    slope, offset = call.attribute("alpha", 0.2), call.attribute("beta", 0.5)
    if abs(slope - SIXTH) < 1e-6 and offset == 0.5:
        return F.hardsigmoid(call.tensor(0))
    return torch.clamp(slope * call.tensor(0) + offset, 0.0, 1.0)


def _prelu(call: NodeCall) -> Tensor:
    activation, slope = call.tensor(0), call.tensor(1)
    spatial = [1] * (activation.dim() - 2)
    if slope.numel() == 1 or list(slope.shape)[-len(spatial) - 1 :] == [len(slope), *spatial]:
        return F.prelu(activation, slope.reshape(-1))
    return F.relu(activation) - slope * F.relu(-activation)


def _modulo(call: NodeCall) -> Tensor:
    function = torch.fmod if call.attribute("fmod", 0) else torch.remainder
    return function(_operand(call, 0), _operand(call, 1))


def _where(call: NodeCall) -> Tensor:
    return torch.where(call.tensor(0), call.tensor(1), call.tensor(2))


def _cast(call: NodeCall) -> Tensor:
    return call.tensor(0).to(call.torch_dtype(call.attribute("to")))


def _swish(call: NodeCall) -> Tensor:
    activation, slope = call.tensor(0), call.attribute("alpha", 1.0)
    return F.silu(activation) if slope == 1 else activation * torch.sigmoid(slope * activation)


ELEMENTWISE: Mapping[str, Implementation] = {
    **{
        name: _unary(function)
        for name, function in {
            "Identity": lambda value: value,
            "Dropout": lambda value: value,
            "Relu": F.relu,
            "Selu": F.selu,
            "Sigmoid": torch.sigmoid,
            "Tanh": torch.tanh,
            "Softplus": F.softplus,
            "Softsign": F.softsign,
            "Mish": F.mish,
            "HardSwish": F.hardswish,
            "Erf": torch.erf,
            "Exp": torch.exp,
            "Log": torch.log,
            "Sqrt": torch.sqrt,
            "Abs": torch.abs,
            "Neg": torch.neg,
            "Reciprocal": torch.reciprocal,
            "Sin": torch.sin,
            "Cos": torch.cos,
            "Atan": torch.atan,
            "Floor": torch.floor,
            "Ceil": torch.ceil,
            "Round": torch.round,
            "Sign": torch.sign,
            "Not": torch.logical_not,
            "IsNaN": torch.isnan,
            "IsInf": torch.isinf,
        }.items()
    },
    "Add": _binary(lambda first, second: first + second),
    "Sub": _binary(lambda first, second: first - second),
    "Mul": _binary(lambda first, second: first * second),
    "Div": _binary(_divide),
    "Pow": _binary(torch.pow),
    "Mod": _modulo,
    "Equal": _binary(lambda first, second: first == second),
    "Greater": _binary(lambda first, second: first > second),
    "GreaterOrEqual": _binary(lambda first, second: first >= second),
    "Less": _binary(lambda first, second: first < second),
    "LessOrEqual": _binary(lambda first, second: first <= second),
    "And": _binary(lambda first, second: first & second),
    "Or": _binary(lambda first, second: first | second),
    "Xor": _binary(lambda first, second: first ^ second),
    "Max": _variadic(lambda first, second: _maximum_or_minimum(first, second, side="min")),
    "Min": _variadic(lambda first, second: _maximum_or_minimum(first, second, side="max")),
    "Sum": _sum,
    "Mean": lambda call: _sum(call) / len(call.inputs),
    "Where": _where,
    "Clip": _clip,
    "Cast": _cast,
    "CastLike": lambda call: call.tensor(0).to(call.tensor(1).dtype),
    "PRelu": _prelu,
    "HardSigmoid": _hard_sigmoid,
    "Swish": _swish,
    "LeakyRelu": lambda call: F.leaky_relu(call.tensor(0), call.attribute("alpha", 0.01)),
    "Elu": lambda call: F.elu(call.tensor(0), call.attribute("alpha", 1.0)),
    "Celu": lambda call: F.celu(call.tensor(0), call.attribute("alpha", 1.0)),
    "ThresholdedRelu": lambda call: F.threshold(call.tensor(0), call.attribute("alpha", 1.0), 0.0),
    "Gelu": lambda call: F.gelu(call.tensor(0), approximate=call.attribute("approximate", "none")),
}
