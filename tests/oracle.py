"""Slow, independent versions of the paper's mathematics, which import nothing from dmbp.

`literal_terms` is Algorithm 1 as printed: a masked backward pass, a sum over bias gradients, and a
double backward pass for the gradients of the masks. `dense_terms` writes a fully connected network
as matrices and adds up every path with every pattern of signs.
"""

import copy
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.overrides import TorchFunctionMode

_RELUS = {functional.relu, torch.relu, Tensor.relu, torch.relu_}


class _MaskedBackward(torch.autograd.Function):
    """A ReLU whose backward pass multiplies the gradient of its output by Σ (Section 3.4)."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(z > 0, mask)
        return z * (z > 0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gate, mask = ctx.saved_tensors
        return gradient * mask * gate, None


class _EveryReLU(TorchFunctionMode):
    def __init__(self, replacement: Any) -> None:
        super().__init__()
        self.replacement = replacement

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in _RELUS:
            return self.replacement(args[0])
        return function(*args, **(kwargs or {}))


def relu_shapes(model: nn.Module, x: Tensor) -> list[torch.Size]:
    """Return the shapes of all ReLU outputs, in order of execution."""
    shapes: list[torch.Size] = []

    def note(z: Tensor) -> Tensor:
        shapes.append(z.shape)
        return z.clamp(min=0)

    with torch.no_grad(), _EveryReLU(note):
        model(x)
    return shapes


def literal_terms(
    model: nn.Module, x: Tensor, target: int, masks: Sequence[Tensor]
) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
    """Return y⁺ and y⁻ of one image, and the gradients of each with respect to the masks."""
    model = fused(model)
    positive = _masked_score(model, x, target, masks)
    negative = _masked_score(model, x, target, [1 - mask for mask in masks])
    return (
        positive.detach(),
        negative.detach(),
        list(torch.autograd.grad(positive, masks, retain_graph=True)),
        list(torch.autograd.grad(negative, masks)),
    )


def _masked_score(model: nn.Module, x: Tensor, target: int, masks: Sequence[Tensor]) -> Tensor:
    remaining: Iterator[Tensor] = iter(masks)
    x = x.detach().requires_grad_()
    biases = [p for name, p in model.named_parameters() if name.split(".")[-1] == "bias"]
    with _EveryReLU(lambda z: _MaskedBackward.apply(z, next(remaining))):
        output = model(x)[:, target].sum()
    gradients = torch.autograd.grad(output, [x, *biases], create_graph=True)
    return sum((g * v).sum() for g, v in zip(gradients, [x, *biases], strict=True))


def fused(model: nn.Module) -> nn.Module:
    """Return a copy with every batch norm `bnN` folded into the convolution `convN` before it."""
    model = copy.deepcopy(model)
    for name, module in list(model.named_children()):
        if name.startswith("bn"):
            convolution = getattr(model, name.replace("bn", "conv"))
            setattr(model, name.replace("bn", "conv"), fuse_conv_bn_eval(convolution, module))
            setattr(model, name, nn.Identity())
    return model.requires_grad_()


def dense_terms(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    x: Tensor,
    masks: Sequence[Tensor],
    target: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y⁺, y⁻ and y~ of relu(W₁x+b₁), relu(W₂·+b₂)…, w·+b as sums over all paths.

    A path starts at the input or at a hidden bias and picks Σ or I−Σ at each layer that it crosses.
    Paths that pick Σ everywhere add up to y⁺, paths that pick I−Σ everywhere to y⁻, all others to
    y~. The last bias crosses no mask: it is in both y⁺ and y⁻, so y~ contains its negative once.
    """
    *hidden, last = weights
    *hidden_biases, last_bias = biases
    frozen: list[Tensor] = []
    gates: list[Tensor] = []
    h = x
    for weight, bias in zip(hidden, hidden_biases, strict=True):
        gate = torch.diag((weight @ h + bias > 0).to(x))
        h = gate @ (weight @ h + bias)
        gates.append(gate)
        frozen.append(gate @ weight)
    sums = {
        "positive": last_bias[target],
        "negative": last_bias[target],
        "mixed": -last_bias[target],
    }
    for start in range(len(hidden) + 1):
        begins = x if start == 0 else gates[start - 1] @ hidden_biases[start - 1]
        crossed = range(len(hidden)) if start == 0 else range(start - 1, len(hidden))
        for signs in product((True, False), repeat=len(crossed)):
            path = begins
            for layer, sign in zip(crossed, signs, strict=True):
                mask = masks[layer] if sign else 1 - masks[layer]
                into = frozen[layer] @ path if start == 0 or layer >= start else path
                path = torch.diag(mask) @ into
            kind = "positive" if all(signs) else "negative" if not any(signs) else "mixed"
            sums[kind] = sums[kind] + last[target] @ path
    return sums["positive"], sums["negative"], sums["mixed"]
