"""ONNX operators on Python numbers, for the arithmetic with which a file computes shapes.

An implementation returns NotImplemented if its result is neither a number nor a vector; the same
operator on tensors then computes it.
"""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dmbp.errors import ModelError
from dmbp.models.onnx.operators.call import (
    FLOAT_TYPES,
    MAX_SHAPE_LENGTH,
    Implementation,
    NodeCall,
    OnnxValue,
)

PAIRS = [-1, 2]
"""The only matrix shape that occurs: exporters use it to reverse the order of paddings."""

LARGEST_EXPONENT = 64
"""Python's integers have no bound: a power of a large one would take all memory."""

MAX_NUMBERS = 65_536
"""The most numbers that a file computes shapes with."""

_INTEGERS = (int, torch.SymInt)


def _elementwise(function: Callable[..., Any]) -> Implementation:
    """Apply a function of numbers to vectors element by element, repeating single elements."""

    def implementation(call: NodeCall) -> OnnxValue:
        vectors = [len(value) for value in call.inputs if isinstance(value, list)]
        if not vectors:
            return function(*call.inputs)
        length = max(vectors) if 0 not in vectors else 0
        columns = [_repeated(value, length) for value in call.inputs]
        return [function(*numbers) for numbers in zip(*columns, strict=True)]

    return implementation


def _repeated(value: OnnxValue, length: int) -> list[Any]:
    listed = value if isinstance(value, list) else [value]
    return listed * length if len(listed) == 1 else listed


def _times(first: Any, second: Any) -> Any:
    if isinstance(first, list) or isinstance(second, list):  # Python would repeat the list
        raise ModelError("Mul of matrices of sizes is not supported in ONNX files")
    return first * second


def _power(base: Any, exponent: Any) -> Any:
    if exponent > LARGEST_EXPONENT:
        raise ModelError(f"Pow with an exponent of {exponent} is not supported in ONNX files")
    return base**exponent


def _quotient(first: Any, second: Any) -> Any:
    if isinstance(first, _INTEGERS) and isinstance(second, _INTEGERS):
        return first // second if _are_unsigned(first, second) else int(first / second)
    return first / second


def _are_unsigned(*numbers: Any) -> bool:
    """Return whether no number is negative; Python rounds negative quotients unlike ONNX."""
    return all(isinstance(number, torch.SymInt) or number >= 0 for number in numbers)


def _modulo(call: NodeCall) -> OnnxValue:
    modulo = math.fmod if call.attribute("fmod", 0) else operator.mod
    return _elementwise(modulo)(call)


def _cast(call: NodeCall) -> OnnxValue:
    to = call.attribute("to")

    def convert(number: Any) -> Any:
        if to in FLOAT_TYPES:
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
    reaches_start = step < 0 and ends[0] < -len(values)
    return values[starts[0] : None if reaches_start else ends[0] : step]


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
    is_vector = len(sizes) == 1 and isinstance(sizes[0], int) and sizes[0] <= MAX_SHAPE_LENGTH
    return [number] * sizes[0] if is_vector and not isinstance(number, float) else NotImplemented


def _product(call: NodeCall) -> OnnxValue:
    value = call.inputs[0]
    product = math.prod(value) if isinstance(value, list) else value
    return [product] if call.attribute("keepdims", 1) else product


def check_numbers(value: OnnxValue) -> None:
    """Raise a `ModelError` for an integer beyond 64 bits or a list that is too long for a shape."""
    numbers: list[Any] = value if isinstance(value, list) else [value]
    if len(numbers) > MAX_NUMBERS:
        raise ModelError(f"a shape is computed from {len(numbers):,} numbers")
    if any(isinstance(number, int) and abs(number) >= 2**63 for number in numbers):
        raise ModelError("a shape is computed from integers beyond 64 bits")


SHAPE_ARITHMETIC: Mapping[str, Implementation] = {
    "Identity": _elementwise(lambda number: number),
    "Add": _elementwise(operator.add),
    "Sub": _elementwise(operator.sub),
    "Mul": _elementwise(_times),
    "Div": _elementwise(_quotient),
    "Mod": _modulo,
    "Pow": _elementwise(_power),
    "Neg": _elementwise(operator.neg),
    "Abs": _elementwise(abs),
    "Sqrt": _elementwise(math.sqrt),
    "Floor": _elementwise(lambda number: float(math.floor(number))),
    "Ceil": _elementwise(lambda number: float(math.ceil(number))),
    "Min": _elementwise(lambda *numbers: min(numbers)),
    "Max": _elementwise(lambda *numbers: max(numbers)),
    "Equal": _elementwise(lambda first, second: bool(first == second)),
    "Less": _elementwise(lambda first, second: bool(first < second)),
    "Greater": _elementwise(lambda first, second: bool(first > second)),
    "Not": _elementwise(operator.not_),
    "And": _elementwise(lambda first, second: first and second),
    "Or": _elementwise(lambda first, second: first or second),
    "Where": _elementwise(lambda condition, yes, no: yes if condition else no),
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
