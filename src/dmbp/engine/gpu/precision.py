"""How a GPU adds up the products of an iteration: in single precision, whatever their factors are.

In half precision cuBLAS may by default keep sums in 16 bits where it adds a product up in several
pieces. What the caller has switched on or off is as it was on the way out.

Steps and values in the precision that the GPU engine learns in.

Activations in float16, in sixty-fourths: a network of affine steps may be run in any unit.

    s (W h + b) = W (s h) + s b

Weights stay as they are; what is added is scaled. That is known of some steps (`added`); a
network with any other is run in its own unit. Activations grow with the terms while masks are
learned, to 530 000 in ResNet50 (50 iterations at a rate of 0.05), and float16 ends at 65 504; at
the other end most are above 0.1, and in the unit it keeps all its bits down to 0.004.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, backends

from dmbp.engine.gpu.state import Shared
from dmbp.engine.plan.rewrites import CONVOLUTION, convolution_arguments
from dmbp.engine.plan.streams import Example, StreamPair, channels_last
from dmbp.engine.readout import CONSTANT_ARGUMENTS, has_known_constant
from dmbp.linear.steps import Step
from dmbp.process import temporarily_set

_IN_HALF = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")


@contextmanager
def sums_in_single_precision(*, allow_tf32: bool) -> Generator[None]:
    """Sums in single precision; its own factors may be rounded to TF32 where that is allowed."""
    matmul: Any = backends.cuda.matmul
    switches = [(backends.cudnn, "allow_tf32", allow_tf32), (matmul, "allow_tf32", allow_tf32)]
    switches += [(matmul, name, False) for name in (*_IN_HALF, "allow_fp16_accumulation")]
    switches = [switch for switch in switches if hasattr(*switch[:2])]  # the last is of torch 2.7
    with temporarily_set(*switches):
        yield


def constant_value(value: Any, dtype: torch.dtype, unit: float) -> Shared | StreamPair:
    """What x alone decides, as it is read at every iteration."""
    cast = _cast_value(value * unit if isinstance(value, Tensor) else value, dtype)
    return Shared(channels_last(cast)) if isinstance(cast, Tensor) else StreamPair(cast, cast)


def _cast_value(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, list | tuple):
        return type(value)(_cast_value(item, dtype) for item in value)
    if is_dataclass(value) and not isinstance(value, type):  # what a step's function holds frozen
        held = {part.name: _cast_value(getattr(value, part.name), dtype) for part in fields(value)}
        return replace(value, **held)
    return value


def cast_example(example: Example, like: Tensor) -> Example:
    """The form of what a step reads, in the precision of a single number."""
    value = example.value
    if isinstance(value, Tensor) and value.is_floating_point():
        return replace(example, value=like.expand(value.shape))
    return replace(example, value=_cast_value(value, like.dtype))


def cast(step: Step, dtype: torch.dtype, *, biased: bool) -> Step:
    """A step with its weights in another precision; a convolution without a bias merged away."""
    if step.operation == CONVOLUTION and not biased:
        weight, _, *rest = convolution_arguments(step)
        step = replace(step, arguments=[step.arguments[0], weight, None, *rest])
    keywords = {name: _cast_value(value, dtype) for name, value in step.keywords.items()}
    return replace(
        step,
        function=_cast_value(step.function, dtype),
        arguments=_cast_value(step.arguments, dtype),
        keywords=keywords,
    )


UNIT = 2.0**-6


def unit_of(steps: Sequence[Step], dtype: torch.dtype) -> float:
    """The unit in which a program of steps is run: one but in float16."""
    if dtype != torch.float16:
        return 1.0
    return UNIT if all(has_known_constant(step) for step in steps if step.site is None) else 1.0


def in_unit(step: Step, unit: float) -> Step:
    """A step of activations that are multiplied by `unit`."""
    places = CONSTANT_ARGUMENTS.get(step.operation, ())
    arguments = [
        part * unit if place in places and isinstance(part, Tensor) else part
        for place, part in enumerate(step.arguments)
    ]
    return replace(step, arguments=arguments) if places else step
