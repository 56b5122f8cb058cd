"""16-bit arithmetic on a GPU: casting, accumulation, and staying inside float16's range.

float16 spans about 40 powers of two, so both passes of an iteration are scaled into it.

In the forward pass, activations are multiplied by one `unit` s for the whole network, which
affine steps allow:

    s (W h + b) = W (s h) + s b

Weights stay as they are and added constants are multiplied by s. This requires knowing which
constant every step adds (`readout.has_known_constant`); any other network runs with a unit of one.
Activations grow with the terms while masks are learned, to 530 000 in ResNet50 (50 iterations at a
learning rate of 0.05), and float16's largest number is 65 504. At the small end, most activations
are above 0.1, and at `FLOAT16_UNIT` float16 keeps all of its bits down to 0.004.

In the backward pass, each row's gradients are multiplied by that row's scale. ResNet50's gradients
span 25 powers of two: the largest are near the score and the smallest in the first layers. RMSProp
divides each by its own size, so all of them count alike. Unscaled, most would be rounded to a few
bits or to zero. A scale is a power of two, so dividing by it does not round. Gradients grow with
the terms, a thousandfold in 50 iterations at a learning rate of 0.05, and spread as they grow; the
scale shrinks by the square root of that growth, so that neither end is lost. `GradientRange`
checks afterwards whether the gradients fitted.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, backends

from dmbp.engine.base import Loss
from dmbp.engine.plan.rewrites import CONVOLUTION, convolution_arguments
from dmbp.engine.plan.streams import Example, by_stream
from dmbp.engine.plan.tail import Tail
from dmbp.engine.readout import CONSTANT_ARGUMENTS, has_known_constant
from dmbp.linear.steps import LinearStep
from dmbp.process import temporarily_set

_REDUCED_PRECISION_FLAGS = (
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
)
"""Unless cleared, these let cuBLAS keep partial sums in 16 bits if it splits a 16-bit product."""


@contextmanager
def float32_accumulation(*, allow_tf32: bool) -> Generator[None]:
    """Accumulate products in float32, and restore the caller's settings on exit.

    `allow_tf32` says whether float32 factors may be rounded to TF32.
    """
    matmul: Any = backends.cuda.matmul
    switches = [(backends.cudnn, "allow_tf32", allow_tf32), (matmul, "allow_tf32", allow_tf32)]
    switches += [
        (matmul, name, False) for name in (*_REDUCED_PRECISION_FLAGS, "allow_fp16_accumulation")
    ]
    switches = [switch for switch in switches if hasattr(*switch[:2])]  # the last needs torch 2.7
    with temporarily_set(*switches):
        yield


def cast_value(value: Any, dtype: torch.dtype) -> Any:
    """Return a value with every floating-point tensor inside it converted to `dtype`."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, list | tuple):
        return type(value)(cast_value(item, dtype) for item in value)
    if is_dataclass(value) and not isinstance(value, type):  # tensors frozen in a step's function
        converted = {
            part.name: cast_value(getattr(value, part.name), dtype) for part in fields(value)
        }
        return replace(value, **converted)
    return value


def cast_example(example: Example, like: Tensor) -> Example:
    """Return an example of a step's input in the dtype of the scalar `like`.

    A tensor becomes an expanded view of `like`, which takes no memory.
    """
    value = example.value
    if isinstance(value, Tensor) and value.is_floating_point():
        return replace(example, value=like.expand(value.shape))
    return replace(example, value=cast_value(value, like.dtype))


def cast_step(step: LinearStep, dtype: torch.dtype, *, biased: bool) -> LinearStep:
    """Return a step with its weights in `dtype`, and a convolution without bias unless `biased`."""
    if step.operation == CONVOLUTION and not biased:
        weight, _, *rest = convolution_arguments(step)
        step = replace(step, arguments=[step.arguments[0], weight, None, *rest])
    keywords = {name: cast_value(value, dtype) for name, value in step.keywords.items()}
    return replace(
        step,
        function=cast_value(step.function, dtype),
        arguments=cast_value(step.arguments, dtype),
        keywords=keywords,
    )


FLOAT16_UNIT = 2.0**-6
"""The factor by which activations are multiplied in float16."""


def activation_unit(steps: Sequence[LinearStep], dtype: torch.dtype) -> float:
    """Return the factor by which a program's activations are multiplied: one except in float16."""
    if dtype != torch.float16:
        return 1.0
    is_affine = all(has_known_constant(step) for step in steps if step.site is None)
    return FLOAT16_UNIT if is_affine else 1.0


def scale_constants(step: LinearStep, unit: float) -> LinearStep:
    """Return a step whose added constants are multiplied by `unit`, as its inputs are."""
    positions = CONSTANT_ARGUMENTS.get(step.operation, ())
    arguments = [
        part * unit if position in positions and isinstance(part, Tensor) else part
        for position, part in enumerate(step.arguments)
    ]
    return replace(step, arguments=arguments) if positions else step


INITIAL_MAGNITUDE = 2.0**8
"""The initial scale is the largest power of two that keeps a row's tail gradients within this."""

FLOAT16_MAX = 65504.0
FLOAT16_UNDERFLOW = 2.0**-25
"""The largest finite float16, and the magnitude below which a number is rounded to zero."""

MAX_UNDERFLOW_SHARE = 0.01
"""The share of non-zero gradients that may be rounded to zero."""


def initial_gradient_scales(tail: Tail, loss: Loss, dtype: torch.dtype) -> Tensor:
    """Return the initial scale of each row's gradients, (rows,): one unless they are float16."""
    if dtype != torch.float16:
        return torch.ones_like(tail.constant)
    parts = [gradient.abs().flatten(1).amax(1) for gradient in tail.gradients.values()]
    largest = torch.stack(parts).amax(0) * loss.largest_seed
    return torch.exp2(torch.log2(INITIAL_MAGNITUDE / largest.clamp(1e-20, 1e20)).floor())


def updated_gradient_scales(starts: Tensor, sizes: Tensor, terms: Tensor) -> Tensor:
    """Return the scale of each row's gradients at the current terms, (rows,).

    Args:
        starts: The scales before the first iteration, (rows,).
        sizes: |y⁺| + |y⁻| of the first iteration, (rows,). Zeros are replaced in place by the
            current size.
        terms: The current y⁺ and y⁻, (2, rows).
    """
    size = terms.abs().sum(0)
    sizes.copy_(torch.where(sizes > 0, sizes, size))
    growth = (size / sizes.clamp(min=1e-30)).clamp(min=1.0)
    return starts * torch.exp2(-torch.floor(torch.log2(growth) / 2))


class GradientRange:
    """Statistics of how gradients fit into float16, collected on the device without synchronising.

    Attributes:
        scales: Each row's gradient scale times the largest seed: an upper bound on the factor by
            which an iteration would multiply the row's gradients.
        largest: The largest scaled magnitude so far.
        counts: The number of non-zero gradients, and how many of them float16 rounds to zero.
    """

    def __init__(self, scales: Tensor, loss: Loss) -> None:
        self.scales = loss.largest_seed * scales
        self.largest = scales.new_zeros(1)
        self.counts = scales.new_zeros(2, dtype=torch.int64)

    def record(self, gradient: Tensor) -> None:
        """Record the unscaled gradients of the scores, both streams stacked."""
        size = by_stream(gradient).abs() * self.scales.view(-1, *(1,) * (gradient.dim() - 1))
        self.largest = torch.maximum(self.largest, size.max())
        present = size > 0
        self.counts = self.counts + torch.stack(
            [present.sum(), (present & (size < FLOAT16_UNDERFLOW)).sum()]
        )

    def fits(self) -> Tensor:
        """Return whether no gradient overflowed and few underflowed, as a tensor on the device."""
        present, vanished = self.counts
        return (vanished <= MAX_UNDERFLOW_SHARE * present) & (self.largest[0] <= FLOAT16_MAX)
