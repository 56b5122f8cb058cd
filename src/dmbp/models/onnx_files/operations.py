"""Every operation of ONNX files that dmbp knows, and how one is computed."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from dmbp.errors import ModelError
from dmbp.models.onnx_files.call import Call, Row
from dmbp.models.onnx_files.elements import ELEMENTS
from dmbp.models.onnx_files.layers import LAYERS
from dmbp.models.onnx_files.norms import NORMS
from dmbp.models.onnx_files.numbers import NUMBERS
from dmbp.models.onnx_files.reductions import REDUCTIONS
from dmbp.models.onnx_files.resizing import RESIZINGS
from dmbp.models.onnx_files.views import VIEWS
from dmbp.models.onnx_files.windows import POOLINGS

OPERATIONS: Mapping[str, Row] = {
    **ELEMENTS,
    **VIEWS,
    **LAYERS,
    **NORMS,
    **POOLINGS,
    **REDUCTIONS,
    **RESIZINGS,
}
"""A new operation is one row in one of these tables."""

HARMLESS = {
    *("kernel_shape", "momentum", "spatial", "ratio", "seed", "storage_order", "sorted"),
    *("stash_type", "saturate", "round_mode", "is_test", "consumed_inputs", "outputs"),
}
"""Attributes that change nothing here: said twice, for training, or for other results."""


def compute(call: Call) -> Any:
    """The result of a call: numbers where its inputs are and its result can be, else tensors.

    An attribute that nobody has asked for is refused: it would be ignored silently.
    """
    row = NUMBERS.get(call.operation)
    if row is not None and not any(isinstance(value, Tensor) for value in call.inputs):
        numbers = row(call)
        if numbers is not NotImplemented:
            return numbers
    result = OPERATIONS[call.operation](call)
    for name, value in call.attributes.items():
        is_neutral = name in HARMLESS or (isinstance(value, list) and set(value) == {1})
        if name not in call.asked and not is_neutral:
            raise ModelError(f"{call.operation} with {name}={value} is not supported in ONNX files")
    return result
