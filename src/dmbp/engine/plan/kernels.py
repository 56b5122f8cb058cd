"""The few functions of a plan that a back end may replace by faster ones.

A plan calls them through its `Kernels` object, so that it never imports a back end. `Kernels` is
plain PyTorch and supports every device; the Triton back end (`engine/gpu/triton/backend.py`)
overrides its methods, and `engine/select.py` chooses between them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dmbp.engine.plan.streams import by_stream
from dmbp.linear.rules.choices import Gather
from dmbp.linear.steps import LinearStep

ConvolutionSettings = tuple[list[int], list[int], list[int], int]
"""Stride, padding, dilation and groups."""

RunConvolution = Callable[[Tensor, Tensor | None], Tensor]
"""Convolves an activation, and multiplies the result by a mask if one is passed."""

Product = Callable[[Tensor], Tensor]
"""Multiplies vectors, (…, depth), by a matrix, and adds a bias if there is one: (…, channels)."""

Unpool = Callable[[Tensor], Tensor]
"""Sends the gradient of every pooling window to the pixel that won it."""

MAX_POOL = "aten.max_pool2d.default"


@dataclass(frozen=True)
class Pooling:
    """A max-pooling with square windows."""

    step: LinearStep
    kernel: int
    stride: int
    padding: int

    @property
    def overlaps(self) -> bool:
        """Whether a pixel may lie in more than one window."""
        return self.kernel > self.stride

    @property
    def index(self) -> Tensor:
        """The flat index of each window's winner in the pooling's input."""
        assert isinstance(self.step.function, Gather)
        return self.step.function.index


def square_windows(step: LinearStep) -> Pooling | None:
    """Return a step as a `Pooling` if it is a max-pooling with square windows, else None.

    Dilated windows and windows of more than 255 pixels are not supported.
    """
    if step.operation != MAX_POOL or not isinstance(step.function, Gather) or step.keywords:
        return None
    settings = [list(a) if isinstance(a, list | tuple) else a for a in step.arguments[1:]]
    kernel = settings[0]
    stride = settings[1] if len(settings) > 1 and settings[1] else kernel
    padding = settings[2] if len(settings) > 2 else [0, 0]
    dilation = settings[3] if len(settings) > 3 else [1, 1]
    is_square = all(len(set(pair)) == 1 for pair in (kernel, stride, padding))
    if not is_square or list(dilation) != [1, 1] or kernel[0] ** 2 > 255:
        return None
    return Pooling(step, kernel[0], stride[0], padding[0])


class Kernels:
    """Plain PyTorch implementations, for any device and dtype."""

    def start_at_gate(self, gradient: Tensor, slope: Tensor, size: float) -> tuple[Tensor, Tensor]:
        """Choose a gate's initial logits, and pass both streams' gradients through it.

        Args:
            gradient: Both streams' gradients with respect to the gate's output, stacked.
            slope: The gate's slope at x.
            size: The magnitude of a logit; its sign is that of both gradients. The logit is zero if
                their signs differ.

        Returns:
            The logits, and the stacked gradients with respect to the gate's input.
        """
        positive, negative = by_stream(gradient)
        agree = torch.sign(positive) == torch.sign(negative)
        logits = size * torch.sign(positive) * agree
        mask = torch.sigmoid(logits)
        return logits, torch.cat([positive * mask * slope, negative * (1 - mask) * slope])

    def pass_gate(self, gradient: Tensor, slope: Tensor, logits: Tensor | None) -> Tensor:
        """Pass both streams' stacked gradients through a gate and its masks σ and 1−σ, if any."""
        sloped = by_stream(gradient) * slope
        if logits is not None:
            mask = torch.sigmoid(logits).to(gradient.dtype)
            sloped = torch.stack([sloped[0] * mask, sloped[1] * (1 - mask)])
        return sloped.flatten(0, 1)

    def product(self, matrix: Tensor, bias: Tensor | None) -> Product:
        """Return x Wᵀ + b as a function of x, for a matrix W (channels, depth)."""
        return lambda vectors: torch.nn.functional.linear(vectors, matrix, bias)

    def convolution(
        self,
        weight: Tensor,  # noqa: ARG002
        bias: Tensor | None,  # noqa: ARG002
        settings: ConvolutionSettings,  # noqa: ARG002
    ) -> RunConvolution | None:
        """Return a faster convolution with these weights, or None if there is none."""
        return None

    def transposed_convolution(
        self,
        weight: Tensor,  # noqa: ARG002
        settings: ConvolutionSettings,  # noqa: ARG002
        input_size: tuple[int, ...],  # noqa: ARG002
    ) -> RunConvolution | None:
        """Return a faster transpose of a convolution, or None if there is none.

        The plan calls this for strided convolutions, whose transpose is not a convolution, and for
        convolutions of images with few channels.
        """
        return None

    def unpooling(
        self,
        pooling: Pooling,  # noqa: ARG002
        input_size: tuple[int, ...],  # noqa: ARG002
    ) -> Unpool | None:
        """Return a faster transpose of a max-pooling, or None if there is none."""
        return None
