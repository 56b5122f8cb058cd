"""Where to compute, and what each kind of device can do.

    >>> find_device("auto").type in ("cuda", "mps", "cpu")
    True

Apple's GPUs, "mps", have no 64-bit floating-point numbers. What needs them there, because rounding
would show, is computed on the CPU: `in_float64` moves values if it has to.
"""

import torch
from torch import Tensor

from dmbp.errors import InputError, first_line
from dmbp.files import shown
from dmbp.process import silence_output

AUTO = "auto"

WITHOUT_FLOAT64 = ("mps",)
"""Types of devices that have no 64-bit floating-point numbers."""


def find_device(name: str | torch.device = AUTO) -> torch.device:
    """Return a device by name, after a check that it is available.

    Args:
        name: "auto" for the first NVIDIA (or AMD) GPU, else Apple's GPU, else the CPU; or a name
            of PyTorch's, such as "cpu", "cuda", "cuda:1" or "mps".

    Returns:
        The device.

    Raises:
        InputError: If there is no such device on this machine.
    """
    if name == AUTO:
        name = best_device()
    try:
        with silence_output():  # torch warns about kinds of devices that it knows by name only
            device = torch.device(name)
            torch.zeros(1, device=device)
    except Exception as error:  # torch raises almost anything for a device that it lacks
        reason = first_line(error).partition(". ")[0][:100]
        is_plain = isinstance(error, AssertionError | RuntimeError) and "ASSERT" not in reason
        why = reason if is_plain else "this PyTorch was built without it"
        raise InputError(f"device {shown(str(name))!r} is not available: {why}") from error
    if device.type == "meta":
        raise InputError("device 'meta' computes nothing; use auto, cpu or cuda")
    return device


def best_device() -> str:
    """Return "cuda", "mps" or "cpu": the first that this machine has."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def widest_dtype(device: torch.device) -> torch.dtype:
    """Return the widest dtype of floating-point numbers that a device has."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def in_float64(values: Tensor) -> Tensor:
    """Return values in float64, on the CPU if their device has no such numbers."""
    has_float64 = widest_dtype(values.device) == torch.float64
    return (values if has_float64 else values.cpu()).double()


def on_device(values: Tensor, device: torch.device) -> Tensor:
    """Return values on a device, in float32 if they are in float64 and the device has none."""
    is_wide = values.dtype == torch.float64
    return values.to(device, widest_dtype(device)) if is_wide else values.to(device)


def synchronise(device: torch.device) -> None:
    """Wait until a GPU has done all that it was given; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def release_memory(device: torch.device) -> None:
    """Give the memory that PyTorch keeps for later back to a GPU."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
