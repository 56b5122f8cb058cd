"""Checks that the linear network's output is the model's.

    error = max over images of  max_c |linear_c − model_c| / max_c |model_c|

If the error is too large, the captured graph is audited, operation by operation, to report where
it arises.
"""

from typing import Any

import torch
from torch import Tensor

from dmbp.errors import InexactCapture
from dmbp.linear.capture.export import CapturedGraph
from dmbp.linear.freeze.freeze import freeze
from dmbp.linear.lines import LineRule, tangent
from dmbp.linear.steps import FrozenGraph, Step
from dmbp.precision import TOLERANCE, relative_error


@torch.no_grad()
def check_exactness(
    captured: CapturedGraph,
    frozen: FrozenGraph,
    inputs: Tensor,
    outputs: Tensor,
    *,
    line: LineRule = tangent,
) -> float:
    """Return the frozen network's relative error against the model's `outputs`.

    Raises:
        InexactCapture: If the error exceeds the tolerance of the outputs' dtype.
    """
    error = relative_error(frozen.output, outputs)
    tolerance = TOLERANCE[outputs.dtype]
    if error <= tolerance:
        return error
    if not torch.isfinite(frozen.output).all():
        raise InexactCapture(
            "the model computes with infinite values, such as those of masked_fill(…, -inf), for "
            "which there is no linear network; use a large finite number instead"
        )
    graph_error, place = _audit(captured, inputs, outputs, line=line)
    if graph_error > tolerance:
        raise InexactCapture(
            f"the captured graph's output differs from the model's by {graph_error:.1e} relative "
            f"(allowed {tolerance:.0e}): does forward() use randomness, or Python state that has "
            "changed?"
        )
    raise InexactCapture(
        f"the linear network's output differs from the model's by {error:.1e} relative "
        f"(allowed {tolerance:.0e}), first at {place}"
    )


def _audit(
    captured: CapturedGraph, inputs: Tensor, outputs: Tensor, *, line: LineRule
) -> tuple[float, str]:
    """Return the captured graph's own error, and the first operation that is frozen inexactly."""
    places: list[str] = []

    def compare(step: Step, arguments: Any, result: Any) -> None:
        found = step.function(*arguments)
        is_wrong = isinstance(result, Tensor) and (
            relative_error(found, result) > TOLERANCE[outputs.dtype]
        )
        if is_wrong:
            places.append(step.module or step.name)

    graph_outputs = freeze(captured, inputs, line=line, audit=compare).output
    place = f"'{places[0]}'" if places else "no single operation: rounding adds up"
    return relative_error(graph_outputs, outputs), place
