"""Products of a vector with a Jacobian matrix.

`torch.autograd.grad` imports sympy when it is given such a vector for the first time, to compare
sizes that may be symbols. That takes as long as a whole explanation; ours are numbers.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _Seed(torch.autograd.Function):
    """Returns a zero whose gradient by each tensor is the vector that belongs to the tensor."""

    @staticmethod
    def forward(ctx: Any, vectors: Sequence[Tensor], *tensors: Tensor) -> Tensor:
        ctx.vectors = vectors
        return tensors[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Tensor | None, ...]:
        return (None, *ctx.vectors)


def vector_products(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    vectors: Sequence[Tensor],
    *,
    retain_graph: bool = False,
) -> tuple[Tensor | None, ...]:
    """Return vector · ∂outputs/∂inputs for each input, or None where there is no dependence.

    Args:
        outputs: What was computed.
        inputs: What to differentiate with respect to.
        vectors: A vector for each output, with its shape.
        retain_graph: Whether the outputs are differentiated again later.
    """
    for output, vector in zip(outputs, vectors, strict=True):
        assert output.shape == vector.shape
    with torch.enable_grad():
        seed = _Seed.apply(vectors, *outputs)
    return torch.autograd.grad(seed, list(inputs), retain_graph=retain_graph, allow_unused=True)
