"""The promise every capture is held to: the linear network's output is the model's.

error = max over images of  max_c |linear_c − model_c| / max_c |model_c|
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
def check(
    captured: CapturedGraph,
    frozen: FrozenGraph,
    inputs: Tensor,
    outputs: Tensor,
    *,
    line: LineRule = tangent,
) -> float:
    """The frozen network's relative error against the model's `outputs`, if within tolerance."""
    error = relative_error(frozen.output, outputs)
    tolerance = TOLERANCE[outputs.dtype]
    if error <= tolerance:
        return error
    if not torch.isfinite(frozen.output).all():
        raise InexactCapture(
            "the model computes with infinite values, as masked_fill(…, -inf) makes them, of which "
            "no linear network exists; use a large finite number instead"
        )
    graph_error, place = _audited(captured, inputs, outputs, line=line)
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


def _audited(
    captured: CapturedGraph, inputs: Tensor, outputs: Tensor, *, line: LineRule
) -> tuple[float, str]:
    """The captured graph's own error, and its first operation whose linear function is wrong."""
    places: list[str] = []

    def audit(step: Step, arguments: Any, result: Any) -> None:
        found = step.function(*arguments)
        is_wrong = isinstance(result, Tensor) and (
            relative_error(found, result) > TOLERANCE[outputs.dtype]
        )
        if is_wrong:
            places.append(step.module or step.name)

    own = freeze(captured, inputs, line=line, audit=audit).output
    place = f"'{places[0]}'" if places else "no single operation: rounding adds up"
    return relative_error(own, outputs), place
