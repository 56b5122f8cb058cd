"""Smooth activations and functions: at x, each element lies on a line.

    φ(z) = slope(x) ⊙ z + offset(x)         exactly, at x

By default the line is the tangent, so the linear network's pullback is the model's gradient there;
`lines.py` has the others. Outputs of activations are sites. Functions that are parts of something
else, a square, a root, an exponential, carry no mask and are always taken by their tangents, as are
functions of several elements, a norm or a variance, whose line is a plane:

    f(z) = ⟨∇f(x), z⟩ + offset(x)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from dmbp.linear.lines import tangent
from dmbp.linear.rules.base import Function, OperationCall, Place, Role, Rule


@dataclass(frozen=True)
class Smooth(Rule):
    """A function of each element; `is_activation` where masks sit on its output."""

    kind = "smooth"
    made: Role = Role.ACTIVATION
    is_activation: bool = True

    def refusal(self, call: OperationCall) -> str | None:
        """Why this call is no function of one activation, or None."""
        alone = call.active == frozenset[Place]({0})
        return None if alone else "its settings depend on the input"

    def masks(self, call: OperationCall) -> bool:
        """Outputs of activations are what masks sit on."""
        return self.is_activation

    def role(self, call: OperationCall) -> Role:
        """What its output is to a product."""
        return max(self.made, super().role(call))

    def freeze(self, call: OperationCall) -> Function:
        """The line at x."""

        def activation(z: Tensor) -> Tensor:
            return call.function(z, *call.arguments[1:], **call.keywords)

        line = call.line if self.is_activation else tangent
        return line(activation, call.arguments[0])


@dataclass(frozen=True)
class Plane:
    """The tangent of a function of several elements, summed over `dimensions`."""

    gradient: Tensor
    dimensions: tuple[int, ...]
    offset: Tensor

    def __call__(self, activation: Tensor, *_: object, **__: object) -> Tensor:
        """The plane at another activation."""
        along = (activation * self.gradient).sum(self.dimensions)
        return along.reshape(self.offset.shape) + self.offset


@dataclass(frozen=True)
class Reduction(Rule):
    """A smooth function over the dimensions that are its argument at `position`."""

    kind = "smooth"
    position: int
    made: Role = Role.NORMALISER

    def refusal(self, call: OperationCall) -> str | None:
        """Why this call is no function of one activation, or None."""
        alone = call.active == frozenset[Place]({0})
        return None if alone else "its settings depend on the input"

    def role(self, call: OperationCall) -> Role:
        """What its output is to a product."""
        return self.made

    def freeze(self, call: OperationCall) -> Function:
        """The plane at x."""
        z = call.arguments[0]
        with torch.enable_grad():
            at = z.detach().requires_grad_()
            value = call.function(at, *call.arguments[1:], **call.keywords)
            gradient = torch.nan_to_num(torch.autograd.grad(value.sum(), at)[0], 0.0, 0.0, 0.0)
        dimensions = _dimensions(call.argument(self.position, "dim"), z.dim())
        along = (z * gradient).sum(dimensions).reshape(value.shape)
        return Plane(gradient, dimensions, value.detach() - along)


@dataclass(frozen=True)
class LogSoftmax(Rule):
    """log softmax(z) = z − log Σ exp(z), of which the sum's logarithm is taken by its plane."""

    kind = "smooth"
    total: ClassVar[Reduction] = Reduction(1, Role.PLAIN)

    def freeze(self, call: OperationCall) -> Function:
        """The activation less the plane at x."""
        dtype = call.function(*call.arguments, **call.keywords).dtype  # it may be asked to widen
        given = (call.arguments[0].to(dtype), call.arguments[1], True)
        total = replace(call, function=torch.logsumexp, arguments=given, keywords={})
        plane = self.total.freeze(total)
        return lambda z, *_, **__: z.to(dtype) - plane(z.to(dtype))


def _dimensions(given: Any, rank: int) -> tuple[int, ...]:
    listed = [given] if isinstance(given, int) else given
    return tuple(d % rank for d in listed) if listed else tuple(range(rank))


def _rows(rule: Rule, names: str) -> dict[str, Rule]:
    return {f"aten.{name}": rule for name in names.split()}


SMOOTH: Mapping[str, Rule] = {
    **_rows(
        Smooth(),
        """
        tanh.default silu.default gelu.default hardswish.default mish.default elu.default
        selu.default celu.default softplus.default log_sigmoid.default sin.default
        """,
    ),
    **_rows(Smooth(Role.WEIGHT), "sigmoid.default hardsigmoid.default"),
    **_rows(Smooth(Role.WEIGHT, is_activation=False), "exp.default"),
    **_rows(
        Smooth(Role.PLAIN, is_activation=False),
        """
        pow.Tensor_Scalar pow.Tensor_Tensor square.default log.default log1p.default log2.default
        expm1.default exp2.default erf.default cos.default atan.default sinh.default cosh.default
        """,
    ),
    **_rows(
        Smooth(Role.NORMALISER, is_activation=False),
        "sqrt.default rsqrt.default reciprocal.default",
    ),
    **_rows(Reduction(2), "linalg_vector_norm.default norm.ScalarOpt_dim"),
    **_rows(Reduction(1), "var.correction var.dim std.correction std.dim"),
    **_rows(Reduction(1, Role.PLAIN), "logsumexp.default"),
    **_rows(Reduction(1, Role.PLAIN), "prod.dim_int"),
    **_rows(LogSoftmax(), "log_softmax.int _log_softmax.default"),
}
