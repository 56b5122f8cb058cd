"""Steps and values in the precision that the GPU engine learns in."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dmbp.engine.folding import CONVOLUTION, convolution_arguments
from dmbp.engine.learning import Shared
from dmbp.engine.streams import Apart, Example, in_order
from dmbp.linear.step import Step


def constant_value(value: Any, dtype: torch.dtype, unit: float) -> Shared | Apart:
    """What x alone decides, as it is read at every iteration."""
    cast = _cast_value(value * unit if isinstance(value, Tensor) else value, dtype)
    return Shared(in_order(cast)) if isinstance(cast, Tensor) else Apart(cast, cast)


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
