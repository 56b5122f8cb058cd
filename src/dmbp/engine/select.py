"""Which engine learns the masks of a network."""

import torch
from torch import Tensor

from dmbp.engine.autograd import AutogradEngine
from dmbp.engine.base import Engine, Logits, Loss
from dmbp.engine.cpu.engine import CpuEngine
from dmbp.engine.gpu.engine import GpuEngine
from dmbp.engine.plan.gates import has_triton
from dmbp.engine.plan.plan import plan_of
from dmbp.errors import InputError, require_known
from dmbp.linear import LinearNetwork

DTYPES = {
    "auto": torch.float16,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "tf32": torch.float32,
    "float32": torch.float32,
}
"""Of activations and gradients on a GPU, by precision."""

PRECISIONS = tuple(DTYPES)
"""In which masks are learned: "auto" is float16 on GPUs for networks in single precision, and the
network's own precision elsewhere. Where masks start and how maps are read is never affected."""


BYTES_TAKEN = 25
"""That learning takes on a GPU for each element with a mask: in batches of 64 it is 11 in
DenseNet121, 12 in ResNet50, 14 in VGG16 and 25 in MobileNetV2, with all that is beside."""

BYTES_AT_MOST = 40
"""For networks that take more."""


def prepare(inputs: Tensor, *, loss: Loss, precision: str) -> None:
    """Begin what an engine for such inputs takes long to do, beside what is done meanwhile."""
    is_triton = inputs.is_cuda and inputs.dtype == torch.float32 and has_triton()
    if is_triton and precision in DTYPES:
        from dmbp.engine.gpu.triton.precompile import compile_ahead

        compile_ahead(loss, dtype=DTYPES[precision], device=inputs.device, rows=len(inputs))


def engine_for(
    net: LinearNetwork,
    logits: Logits,
    *,
    loss: Loss,
    learning_rate: float,
    precision: str = "auto",
) -> Engine:
    """The fastest engine there is for a network on its device and in a precision.

    A network whose rows are lost from sight before a mask is learned by the reference engine.
    """
    require_known("precision", precision, PRECISIONS)
    device, own = net.inputs.device.type, net.inputs.dtype
    is_own = precision == "auto" or (device, precision, own) == ("cpu", "float32", torch.float32)
    if not is_own and (own != torch.float32 or device != "cuda"):
        why = f"GPUs, not {device}" if device != "cuda" else f"models in float32, not {own}"
        raise InputError(f"precision {precision!r} is for {why}: leave it at 'auto'")
    by_row = plan_of(net).rows_known
    if has_gpu_engine(net):
        return GpuEngine(
            net,
            logits,
            loss=loss,
            learning_rate=learning_rate,
            dtype=DTYPES[precision],
            allow_tf32=precision == "tf32",
            triton=has_triton(),
        )
    fast = device == "cpu" and own in (torch.float32, torch.float64) and by_row
    kind = CpuEngine if fast else AutogradEngine
    return kind(net, logits, loss=loss, learning_rate=learning_rate)


def has_gpu_engine(net: LinearNetwork) -> bool:
    """Whether it is learned by the engine for GPUs, which is made for every question alike."""
    on_gpu = net.inputs.is_cuda and net.inputs.dtype == torch.float32
    return on_gpu and plan_of(net).rows_first
