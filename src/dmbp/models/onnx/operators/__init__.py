"""The ONNX operators that can be imported, and how a node is computed.

    elementwise.py       Relu, Gelu, Clip, Add, Where, Cast, …
    layers.py            Conv, Gemm, MatMul, Attention, STFT, the normalisations, Softmax
    pooling.py           MaxPool, AveragePool, Resize, GridSample, Reduce*, ArgMax, TopK, CumSum
    recurrent.py         LSTM, GRU, RNN
    quantised.py         weights in fewer bits: DequantizeLinear, MatMulNBits
    shape.py             Reshape, Transpose, Concat, Slice, Gather, Pad, Expand, …
    shape_arithmetic.py  some of these again on Python numbers, for shapes that a file computes
    call.py              `NodeCall`: the inputs and attributes that an implementation receives

To add an operator, write a function that takes a `NodeCall` and returns a tensor, and add it under
its ONNX name to the table at the end of the module where it belongs. Read inputs with
`call.tensor(position)` and attributes with `call.attribute(name, default)`: a file with an
attribute that the implementation does not read is refused, so that nothing is silently ignored. Add
a case to `tests/models/onnx/test_operators.py`, which compares it with onnx's reference evaluator.
For example, in `elementwise.py`:

    "LeakyRelu": lambda call: F.leaky_relu(call.tensor(0), call.attribute("alpha", 0.01)),
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from dmbp.errors import ModelError
from dmbp.models.onnx.operators.call import Implementation, NodeCall
from dmbp.models.onnx.operators.elementwise import ELEMENTWISE
from dmbp.models.onnx.operators.layers import LAYERS, NORMALISATIONS
from dmbp.models.onnx.operators.pooling import POOLINGS, REDUCTIONS, RESIZINGS
from dmbp.models.onnx.operators.quantised import DEQUANTISATIONS
from dmbp.models.onnx.operators.recurrent import RECURRENT
from dmbp.models.onnx.operators.shape import SHAPE_OPERATORS
from dmbp.models.onnx.operators.shape_arithmetic import SHAPE_ARITHMETIC, check_numbers

OPERATORS: Mapping[str, Implementation] = {
    **ELEMENTWISE,
    **SHAPE_OPERATORS,
    **LAYERS,
    **NORMALISATIONS,
    **POOLINGS,
    **REDUCTIONS,
    **RESIZINGS,
    **RECURRENT,
    **DEQUANTISATIONS,
}
"""Every operator that can be imported, by its ONNX name."""

IGNORED_ATTRIBUTES = {
    *("kernel_shape", "momentum", "spatial", "ratio", "seed", "storage_order", "sorted"),
    *("stash_type", "saturate", "round_mode", "is_test", "consumed_inputs", "outputs"),
}
"""Attributes that do not affect a result: redundant, for training, or for other outputs."""


def compute(call: NodeCall) -> Any:
    """Return a node's result.

    It is computed by shape arithmetic, as Python numbers, if that supports the operator and no
    input is a tensor.

    Raises:
        ModelError: If the node has an attribute that its implementation did not read, because it
            would be silently ignored.
    """
    arithmetic = SHAPE_ARITHMETIC.get(call.operator)
    if arithmetic is not None and not any(isinstance(value, Tensor) for value in call.inputs):
        numbers = arithmetic(call)
        if numbers is not NotImplemented:
            check_numbers(numbers)
            return numbers
    result = OPERATORS[call.operator](call)
    for name, value in call.attributes.items():
        is_neutral = name in IGNORED_ATTRIBUTES or (isinstance(value, list) and set(value) == {1})
        if name not in call.attributes_read and not is_neutral:
            raise ModelError(f"{call.operator} with {name}={value} is not supported in ONNX files")
    return result
