"""ONNX operators on weights that are stored in fewer bits; the network itself computes in floats.

Networks that compute with integers (`QuantizeLinear`, `QLinearConv`, `ConvInteger`, …) are refused.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from dmbp.errors import ModelError
from dmbp.models.onnx.operators.call import Implementation, NodeCall


def _dequantise(call: NodeCall) -> Tensor:
    value, scale, zero = call.tensor(0), call.tensor(1), call.optional_tensor(2)
    if value.is_floating_point():
        raise ModelError("DequantizeLinear of 8-bit floats is not supported in ONNX files")
    axis, block = call.attribute("axis", 1), call.attribute("block_size", 0)
    if block:
        repeated = (scale, zero) if zero is not None else (scale,)
        wide = [
            part.repeat_interleave(block, axis).narrow(axis, 0, value.shape[axis])
            for part in repeated
        ]
        scale, zero = wide[0], wide[1] if zero is not None else None
    elif scale.dim() == 1 and scale.numel() > 1:
        sizes = [1] * value.dim()
        sizes[axis] = -1
        scale, zero = scale.view(sizes), None if zero is None else zero.view(sizes)
    dtype = call.images.dtype
    shifted = value.to(dtype) if zero is None else value.to(dtype) - zero.to(dtype)
    return shifted * scale.to(dtype)


def _matrix_product_of_few_bits(call: NodeCall) -> Tensor:
    """`com.microsoft.MatMulNBits`: a product with a matrix of 4 or 8 bits, in blocks of rows."""
    inputs, outputs = call.attribute("K"), call.attribute("N")
    bits, block = call.attribute("bits", 4), call.attribute("block_size", 32)
    call.attribute("accuracy_level", 0)
    if bits not in (4, 8) or call.has_input(4):
        raise ModelError(f"MatMulNBits with {bits} bits or with an order is not supported")
    packed, scale = call.tensor(1), call.tensor(2)
    levels = _unpacked(packed.reshape(outputs, -1), bits)
    blocks = levels.reshape(outputs, -1, block)
    zero: Tensor | float = 2.0 ** (bits - 1)
    if call.has_input(3):
        given = call.tensor(3)
        flat = given.reshape(outputs, -1)
        flat = flat if given.is_floating_point() else _unpacked(flat, bits)
        zero = flat[:, : blocks.shape[1], None].to(call.images.dtype)
    matrix = (blocks.to(call.images.dtype) - zero) * scale.reshape(outputs, -1, 1)
    product = call.tensor(0) @ matrix.reshape(outputs, -1)[:, :inputs].T
    return product + call.tensor(5) if call.has_input(5) else product


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    """Return the numbers in bytes (rows, bytes); of two in a byte the lower half is the first."""
    if bits == 8:
        return packed
    return torch.stack([packed & 15, packed >> 4], -1).flatten(1)


DEQUANTISATIONS: Mapping[str, Implementation] = {
    "DequantizeLinear": _dequantise,
    "com.microsoft.MatMulNBits": _matrix_product_of_few_bits,
}
