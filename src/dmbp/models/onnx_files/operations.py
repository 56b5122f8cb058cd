"""Every operation of ONNX files that dmbp knows, and how one is computed."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

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


def compute(call: Call) -> Any:
    """The result of a call: numbers where its inputs are and its result can be, else tensors."""
    row = NUMBERS.get(call.operation)
    if row is not None and not any(isinstance(value, Tensor) for value in call.inputs):
        numbers = row(call)
        if numbers is not NotImplemented:
            return numbers
    return OPERATIONS[call.operation](call)
