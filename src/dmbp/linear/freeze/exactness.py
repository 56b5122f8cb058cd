"""The promise every capture is held to: the linear network's output is the model's.

error = max over images of  max_c |linear_c − model_c| / max_c |model_c|

What a model must do alike for an image alone and among others, asked of the model itself.

Whether images see each other, and whether other inputs belong to images one by one, shows in its
outputs alone.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dmbp.errors import CaptureError, InexactCapture, ModelError
from dmbp.linear.capture.export import CapturedGraph
from dmbp.linear.freeze.freeze import freeze
from dmbp.linear.lines import LineRule, tangent
from dmbp.linear.model.signature import ExtraInputs
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


OutputsOf = Callable[[Tensor, ExtraInputs], Tensor]
"""A model's outputs for some images beside its other inputs."""


def check_independence(
    model: OutputsOf, inputs: Tensor, held: ExtraInputs, outputs: Tensor
) -> None:
    """Refuse a model that lets the images of a batch see each other; `outputs` are all images'."""
    first = held.pick([0])
    try:
        beside_another = model(torch.cat([inputs[:1], -inputs[:1].flip(-1)]), first)[:1]
        alone = model(inputs[:1], first)
    except ModelError:
        return  # it takes batches of one size only, and was run on that
    tolerance = TOLERANCE[inputs.dtype]
    if max(relative_error(other, alone) for other in (beside_another, outputs[:1])) > tolerance:
        raise CaptureError(
            "an image's output changes with the other images of its batch, so no explanation "
            "of one image exists; does forward() average or mix over the batch?"
        )


def as_taken(model: OutputsOf, inputs: Tensor, held: ExtraInputs) -> ExtraInputs:
    """The other inputs: of those that count the images, what the model takes them for.

    A weight for each of five classes beside five images must not be cut into images: a few copies
    of the first image, with its share of what is given, have to give its output again, and so have
    all images in another order.
    """
    if not held.by_image:
        return held
    copies = inputs[:1].expand(3 if len(inputs) == 2 else 2, *inputs.shape[1:])
    outputs = model(inputs, held)
    first, turned = outputs[:1].expand(len(copies), -1), outputs.flip(0)
    order = range(len(inputs) - 1, -1, -1)
    agree = (
        reading
        for reading in held.readings()
        if _gives(model, copies, reading.pick([0]), first)
        and _gives(model, inputs.flip(0), reading.pick(order), turned)
    )
    return next(agree, held)


def _gives(model: OutputsOf, inputs: Tensor, held: ExtraInputs, expected: Tensor) -> bool:
    try:
        found = model(inputs, held)
    except ModelError:
        return False
    return relative_error(found, expected) <= TOLERANCE[inputs.dtype]
