"""Operations on sizes: a file's arithmetic with shapes, in Python's numbers.

Rows give NotImplemented where a result would be no number and no vector; tensors take over there.
"""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dmbp.models.onnx.call import SHORT, Implementation, NodeCall, OnnxValue

PAIRS = [-1, 2]
"""The one matrix that sizes become: an exporter turns the two ends of each padding around in it."""

_INTEGERS = (int, torch.SymInt)
_FLOATS = (1, 10, 11, 16)


def _spread(function: Callable[..., Any]) -> Implementation:
    """A function of numbers, on vectors element by element; a single element meets all others."""

    def row(call: NodeCall) -> OnnxValue:
        vectors = [len(value) for value in call.inputs if isinstance(value, list)]
        if not vectors:
            return function(*call.inputs)
        length = max(vectors) if 0 not in vectors else 0
        columns = [_stretched(value, length) for value in call.inputs]
        return [function(*numbers) for numbers in zip(*columns, strict=True)]

    return row


def _stretched(value: OnnxValue, length: int) -> list[Any]:
    listed = value if isinstance(value, list) else [value]
    return listed * length if len(listed) == 1 else listed


def _quotient(first: Any, second: Any) -> Any:
    if isinstance(first, _INTEGERS) and isinstance(second, _INTEGERS):
        return first // second if _is_size(first, second) else int(first / second)
    return first / second


def _is_size(*numbers: Any) -> bool:
    """Whether numbers have no sign, in which Python's division would differ from ONNX's."""
    return all(isinstance(number, torch.SymInt) or number >= 0 for number in numbers)


def _modulo(call: NodeCall) -> OnnxValue:
    of_floats = math.fmod if call.attribute("fmod", 0) else operator.mod
    return _spread(of_floats)(call)


def _cast(call: NodeCall) -> OnnxValue:
    to = call.attribute("to")

    def convert(number: Any) -> Any:
        if to in _FLOATS:
            return torch.sym_float(number)
        return bool(number) if to == 9 else torch.sym_int(number)

    value = call.inputs[0]
    return [convert(number) for number in value] if isinstance(value, list) else convert(value)


def _gather(call: NodeCall) -> OnnxValue:
    values, index = call.inputs
    if not isinstance(values, list):
        return NotImplemented
    return [values[k] for k in index] if isinstance(index, list) else values[index]


def _slice(call: NodeCall) -> OnnxValue:
    values = call.inputs[0]
    starts, ends = call.setting(1, "starts"), call.setting(2, "ends")
    step = (call.setting(4, "steps") or [1])[0]
    backwards_to_the_start = step < 0 and ends[0] < -len(values)
    return values[starts[0] : None if backwards_to_the_start else ends[0] : step]


def _concat(call: NodeCall) -> OnnxValue:
    if not all(isinstance(value, list) for value in call.inputs):
        return NotImplemented
    return [number for value in call.inputs for number in value]


def _unsqueeze(call: NodeCall) -> OnnxValue:
    value = call.inputs[0]
    return NotImplemented if isinstance(value, list) else [value]


def _squeeze(call: NodeCall) -> OnnxValue:
    value = call.inputs[0]
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _reshape(call: NodeCall) -> OnnxValue:
    value, sizes = call.inputs
    if sizes == PAIRS:
        return [value[k : k + 2] for k in range(0, len(value), 2)]
    if len(sizes) > 1:
        return NotImplemented
    listed = value if isinstance(value, list) else [value]
    flat = [number for pair in listed for number in (pair if isinstance(pair, list) else [pair])]
    return flat if sizes else flat[0]


def _transpose(call: NodeCall) -> OnnxValue:
    pairs = call.inputs[0]
    nested = bool(pairs) and isinstance(pairs[0], list)
    return [list(side) for side in zip(*pairs, strict=True)] if nested else NotImplemented


def _constant_of_shape(call: NodeCall) -> OnnxValue:
    sizes, number = call.inputs[0], call.attribute("value", 0.0)
    is_vector = len(sizes) == 1 and isinstance(sizes[0], int) and sizes[0] <= SHORT
    return [number] * sizes[0] if is_vector and not isinstance(number, float) else NotImplemented


def _product(call: NodeCall) -> OnnxValue:
    value = call.inputs[0]
    product = math.prod(value) if isinstance(value, list) else value
    return [product] if call.attribute("keepdims", 1) else product


NUMBERS: Mapping[str, Implementation] = {
    "Identity": _spread(lambda number: number),
    "Add": _spread(operator.add),
    "Sub": _spread(operator.sub),
    "Mul": _spread(operator.mul),
    "Div": _spread(_quotient),
    "Mod": _modulo,
    "Pow": _spread(operator.pow),
    "Neg": _spread(operator.neg),
    "Abs": _spread(abs),
    "Sqrt": _spread(math.sqrt),
    "Floor": _spread(lambda number: float(math.floor(number))),
    "Ceil": _spread(lambda number: float(math.ceil(number))),
    "Min": _spread(lambda *numbers: min(numbers)),
    "Max": _spread(lambda *numbers: max(numbers)),
    "Equal": _spread(lambda first, second: bool(first == second)),
    "Less": _spread(lambda first, second: bool(first < second)),
    "Greater": _spread(lambda first, second: bool(first > second)),
    "Not": _spread(operator.not_),
    "And": _spread(lambda first, second: first and second),
    "Or": _spread(lambda first, second: first or second),
    "Where": _spread(lambda condition, yes, no: yes if condition else no),
    "Cast": _cast,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "ConstantOfShape": _constant_of_shape,
    "ReduceProd": _product,
}
