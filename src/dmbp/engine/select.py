"""Chooses the engine and kernels for a network; only this module imports all back ends.

`max_pool2d` and `replace_pixels` are for methods that run a model on many images: they run a kernel
of ours if there is one for these images, and PyTorch's operations otherwise.
"""

import warnings
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from dmbp.engine.autograd import AutogradEngine
from dmbp.engine.base import Engine, Logits, Loss
from dmbp.engine.cpu.engine import CpuEngine
from dmbp.engine.gpu.engine import GpuBackend, GpuEngine
from dmbp.engine.gpu.torch_backend import TorchBackend
from dmbp.engine.plan.kernels import Kernels
from dmbp.engine.plan.plan import ExecutionPlan
from dmbp.errors import InputError, require_known
from dmbp.linear import LinearNetwork

DTYPES = {
    "auto": torch.float16,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "tf32": torch.float32,
    "float32": torch.float32,
}
"""The dtype of activations and gradients on a GPU, by precision."""

PRECISIONS = tuple(DTYPES)
"""The precisions in which masks can be learned. "auto" is float16 on GPUs for networks in single
precision, and the network's own precision elsewhere. The initial masks and the read-out do not
depend on it."""

TYPICAL_BYTES_PER_ELEMENT = 25
"""Bytes of GPU memory per masked element that learning takes, everything included. Measured in
batches of 64: 11 for DenseNet121, 12 for ResNet50, 14 for VGG16 and 25 for MobileNetV2."""

MAX_BYTES_PER_ELEMENT = 40
"""An upper estimate of the same, for networks that take more memory than usual."""


Sides = int | list[int] | tuple[int, ...]
"""A height and a width, or one number for both."""


def plan_for(net: LinearNetwork) -> ExecutionPlan:
    """Return the execution plan of a network, with the fastest kernels for its device."""
    kernels = Kernels()
    if net.inputs.is_cuda and has_triton():
        from dmbp.engine.gpu.triton.backend import TritonKernels

        kernels = TritonKernels()
    return ExecutionPlan(net, kernels)


def engine_for(
    plan: ExecutionPlan,
    logits: Logits,
    *,
    loss: Loss,
    learning_rate: float,
    precision: str = "auto",
) -> Engine:
    """Return the fastest engine for a network on its device and in a precision.

    This is the autograd engine if it is unknown which elements belong to which row at a site, or if
    neither of the faster engines supports the network's device and dtype.

    Args:
        plan: The network's execution plan.
        logits: The initial logits.
        loss: The loss to minimise.
        learning_rate: RMSProp's learning rate.
        precision: One of `PRECISIONS`.

    Raises:
        InputError: If the precision is unknown, or not available for this device and dtype.
    """
    require_known("precision", precision, PRECISIONS)
    device, own = plan.net.inputs.device.type, plan.net.inputs.dtype
    is_own = precision == "auto" or (device, precision, own) == ("cpu", "float32", torch.float32)
    if not is_own and (own != torch.float32 or device != "cuda"):
        why = (
            f"GPUs with CUDA, not {device}" if device != "cuda" else f"models in float32, not {own}"
        )
        raise InputError(f"precision {precision!r} is for {why}: leave it at 'auto'")
    if has_gpu_engine(plan):
        return GpuEngine(
            plan,
            logits,
            loss=loss,
            learning_rate=learning_rate,
            dtype=DTYPES[precision],
            allow_tf32=precision == "tf32",
            backend=gpu_backend(),
        )
    on_cpu = device == "cpu" and own in (torch.float32, torch.float64) and plan.rows_known
    kind = CpuEngine if on_cpu else AutogradEngine
    return kind(plan, logits, loss=loss, learning_rate=learning_rate)


def has_gpu_engine(plan: ExecutionPlan) -> bool:
    """Return whether the GPU engine can learn this network's masks."""
    inputs = plan.net.inputs
    return inputs.is_cuda and inputs.dtype == torch.float32 and plan.rows_first


def gpu_backend() -> GpuBackend:
    """Return the Triton back end, or the plain PyTorch one if Triton is not installed."""
    if not has_triton():
        return TorchBackend()
    from dmbp.engine.gpu.triton.backend import TritonBackend

    return TritonBackend()


def prepare(inputs: Tensor, *, loss: Loss, precision: str) -> None:
    """Start compiling, in the background, the kernels that an engine for these inputs will need."""
    uses_triton = inputs.is_cuda and inputs.dtype == torch.float32 and has_triton()
    if uses_triton and precision in DTYPES:
        from dmbp.engine.gpu.triton.precompile import compile_ahead

        compile_ahead(loss, dtype=DTYPES[precision], device=inputs.device, rows=len(inputs))


def max_pool2d(
    images: Tensor,
    kernel_size: Sides,
    stride: Sides = (),
    padding: Sides = 0,
    dilation: Sides = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Pool images like `torch.max_pool2d`; a result of 16 bits on a GPU has its channels last."""
    if not has_image_kernels(images):
        return torch.max_pool2d(images, kernel_size, stride, padding, dilation, ceil_mode)
    from dmbp.engine.gpu.triton.images import max_pool2d

    settings = map(_pair, (kernel_size, stride or kernel_size, padding, dilation))
    with torch.cuda.device(images.device):
        return max_pool2d(images, *settings, ceil_mode=ceil_mode)


def replace_pixels(images: Tensor, backgrounds: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
    """Return some of the images, with the pixels in a mask replaced by those of a background.

    Args:
        images: The images, (images, channels, *size), or vectors.
        backgrounds: What takes the place of each image's pixels; shaped like the images.
        rows: The indices of the images to return, not negative; an image may be there repeatedly.
        mask: Which pixels to replace in each of them, boolean (len(rows), *size).

    Returns:
        The changed images, (len(rows), channels, *size).
    """
    if has_image_kernels(images):
        from dmbp.engine.gpu.triton.images import can_replace_pixels, replace_pixels

        if can_replace_pixels(images, backgrounds):
            with torch.cuda.device(images.device):
                return replace_pixels(images, backgrounds, rows, mask)
    mask = mask[:, None] if images.dim() > 2 else mask
    return torch.where(mask, backgrounds[rows], images[rows])


def has_image_kernels(images: Tensor) -> bool:
    """Return whether Triton's kernels for images in 16 bits can be used."""
    has_16_bits = images.dtype in (torch.float16, torch.bfloat16)
    return images.is_cuda and images.dim() == 4 and has_16_bits and _is_installed("triton")


def _pair(sides: Sides) -> list[int]:
    """Return a height and a width."""
    sides = [sides] if isinstance(sides, int) else [*sides]
    return 2 * sides if len(sides) == 1 else sides


@cache
def _is_installed(package: str) -> bool:
    return find_spec(package) is not None


@cache
def has_triton() -> bool:
    """Return whether Triton is installed; warn once if it is not."""
    if _is_installed("triton"):
        return True
    warnings.warn(
        "Triton is not installed: masks are learned by plain CUDA operations, several times slower",
        stacklevel=2,
    )
    return False
