"""Smooth functions: at x, every element lies on a line.

    φ(z) = slope(x) ⊙ z + offset(x)         exactly, at x

By default the line is the tangent, whose slope is the activation's derivative; `lines.py` has other
lines. Outputs of smooth activations are sites. Functions that are parts of something else (a
square, a root, an exponential) carry no mask and are always replaced by their tangents. So are
functions of several elements, such as a norm or a variance, whose tangent is a plane:

    f(z) = ⟨∇f(x), z⟩ + offset(x)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from dmbp.linear.lines import tangent
from dmbp.linear.rules.base import (
    Function,
    OperationCall,
    Role,
    Rule,
    refuse_active_settings,
    same_rule,
)


@dataclass(frozen=True)
class Smooth(Rule):
    """A smooth elementwise function; `is_activation` says that its output carries a mask."""

    kind = "smooth"
    output_role: Role = Role.ACTIVATION
    is_activation: bool = True

    def freeze(self, call: OperationCall) -> Function:
        """Return each element's line at x."""

        def activation(z: Tensor) -> Tensor:
            return call.function(z, *call.arguments[1:], **call.keywords)

        line = call.line if self.is_activation else tangent
        return line(activation, call.arguments[0])

    def refusal(self, call: OperationCall) -> str | None:
        """Return why this call is not a function of one activation, or None."""
        return refuse_active_settings(call)

    def is_site(self, call: OperationCall) -> bool:
        """Return whether the function is an activation."""
        return self.is_activation

    def role(self, call: OperationCall) -> Role:
        """Return the higher of the function's role and the input's."""
        return max(self.output_role, super().role(call))


@dataclass(frozen=True)
class TangentPlane:
    """The tangent plane of a function over the elements along `dimensions`."""

    gradient: Tensor
    dimensions: tuple[int, ...]
    offset: Tensor

    def __call__(self, activation: Tensor, *_: object, **__: object) -> Tensor:
        """Evaluate the plane at another activation."""
        along = (activation * self.gradient).sum(self.dimensions)
        return along.reshape(self.offset.shape) + self.offset


@dataclass(frozen=True)
class SmoothReduction(Rule):
    """A smooth reduction over the dimensions that its argument at position `dim` lists."""

    kind = "smooth"
    dim: int
    output_role: Role = Role.NORMALISER

    def freeze(self, call: OperationCall) -> Function:
        """Return the tangent plane at x."""
        z = call.arguments[0]
        with torch.enable_grad():
            at = z.detach().requires_grad_()
            value = call.function(at, *call.arguments[1:], **call.keywords)
            gradient = torch.nan_to_num(torch.autograd.grad(value.sum(), at)[0], 0.0, 0.0, 0.0)
        dimensions = _dimensions(call.argument(self.dim, "dim"), z.dim())
        along = (z * gradient).sum(dimensions).reshape(value.shape)
        return TangentPlane(gradient, dimensions, value.detach() - along)

    def refusal(self, call: OperationCall) -> str | None:
        """Return why this call is not a function of one activation, or None."""
        return refuse_active_settings(call)

    def role(self, call: OperationCall) -> Role:
        """Return the function's role."""
        return self.output_role


@dataclass(frozen=True)
class LogSoftmax(Rule):
    """log softmax(z) = z − log Σ exp(z), with log Σ exp replaced by its tangent plane."""

    kind = "smooth"
    log_sum_exp: ClassVar[SmoothReduction] = SmoothReduction(1, Role.PLAIN)

    def freeze(self, call: OperationCall) -> Function:
        """Return the activation minus the plane at x."""
        dtype = call.function(*call.arguments, **call.keywords).dtype  # an argument may widen it
        arguments = (call.arguments[0].to(dtype), call.arguments[1], True)
        log_sum_exp = replace(call, function=torch.logsumexp, arguments=arguments, keywords={})
        plane = self.log_sum_exp.freeze(log_sum_exp)
        return lambda z, *_, **__: z.to(dtype) - plane(z.to(dtype))


def _dimensions(dim: Any, rank: int) -> tuple[int, ...]:
    """Return a `dim` argument as non-negative dimensions; None or empty means all of them."""
    listed = [dim] if isinstance(dim, int) else dim
    return tuple(d % rank for d in listed) if listed else tuple(range(rank))


SMOOTH: Mapping[str, Rule] = {
    **same_rule(
        Smooth(),
        """
        tanh.default silu.default gelu.default hardswish.default mish.default elu.default
        selu.default celu.default softplus.default log_sigmoid.default sin.default
        """,
    ),
    **same_rule(Smooth(Role.WEIGHT), "sigmoid.default hardsigmoid.default"),
    **same_rule(Smooth(Role.WEIGHT, is_activation=False), "exp.default"),
    **same_rule(
        Smooth(Role.PLAIN, is_activation=False),
        """
        pow.Tensor_Scalar pow.Tensor_Tensor square.default log.default log1p.default log2.default
        expm1.default exp2.default erf.default cos.default atan.default sinh.default cosh.default
        """,
    ),
    **same_rule(
        Smooth(Role.NORMALISER, is_activation=False),
        "sqrt.default rsqrt.default reciprocal.default",
    ),
    **same_rule(SmoothReduction(2), "linalg_vector_norm.default norm.ScalarOpt_dim"),
    **same_rule(SmoothReduction(1), "var.correction var.dim std.correction std.dim"),
    **same_rule(SmoothReduction(1, Role.PLAIN), "logsumexp.default"),
    **same_rule(SmoothReduction(1, Role.PLAIN), "prod.dim_int"),
    **same_rule(LogSoftmax(), "log_softmax.int _log_softmax.default"),
}
