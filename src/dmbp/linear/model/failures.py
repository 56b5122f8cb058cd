"""What to say if a model does not run, or if `torch.export` cannot capture it.

PyTorch's messages speak of its own internals. The functions here say in one sentence what the model
does that prevents it, in which line of the user's code, and what to do about it.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dmbp.errors import CaptureError, ModelError, first_line, place_of
from dmbp.linear.model.torchscript.module import TorchScriptModule
from dmbp.linear.rules.refusals import cause_of

_NO_KERNEL = re.compile(r"not implemented for|[Ll]ow precision|not supported .*(Half|BFloat16)")

_MISSING_INPUT = re.compile(
    r"missing (?:\d+ required positional|value for) arguments?:? ('.*?'(?=$|\.)|'\w+')"
)

_ASSIGNED = re.compile(r"attributes? (?:self\.)?([\w., ]+?) (?:was|were) assigned during export")

_CUSTOM_OPERATION = re.compile(r"(?:CustomOpDef\(|[Oo]perator )'?([\w.]+::\w+)")


def forward_failure(error: Exception, inputs: Tensor) -> ModelError:
    """Return the exception for a model whose forward() raises `error`."""
    shape, message, place = tuple(inputs.shape), first_line(error), place_of(error)
    where = f" ({place})" if place else ""
    if "device meta" in message or "Meta" in message:
        return ModelError(
            f"the model does not run: a tensor that forward() reads{where} is on the meta device "
            "and has no data; load the model's weights, and make its other tensors on a real device"
        )
    if inputs.dtype in (torch.float16, torch.bfloat16) and _NO_KERNEL.search(message):
        return ModelError(
            f"the model does not run: an operation{where} has no kernel for {inputs.dtype} on "
            f"{inputs.device.type}; use model.float() and inputs.float()"
        )
    missing = _MISSING_INPUT.search(message)
    if missing is not None:
        return ModelError(
            f"the model takes other inputs, too: {missing[1]}; pass them as "
            "additional_forward_args, or, on the command line, give --model a function that "
            "returns a model of images alone"
        )
    hint = "; for a single image pass a batch, inputs[None]" if inputs.dim() == 3 else ""
    return ModelError(f"the model does not run on an input of shape {shape}: {message}{hint}")


def export_failure(model: nn.Module, error: Exception) -> CaptureError:
    """Return the exception for a model that runs, but that `torch.export` fails on with `error`."""
    quantised = next(_quantised_modules(model), None)
    if quantised is not None:
        return CaptureError(
            f"the model's {quantised!r} is quantised and computes with integers, for which there "
            "is no linear network; explain the network in floating point, from before it was "
            "quantised"
        )
    message, place = first_line(error), place_of(error)
    where = f" at {place}" if place else ""
    if "DataDependent" in type(error).__name__ or "data-dependent" in message:
        return CaptureError(
            f"forward() decides by the values of a tensor{where} what it computes, as an if, an "
            "assert, a loop or a size does, so the model is not a single graph; use torch.where, "
            "or explain the model without that decision"
        )
    assigned = _ASSIGNED.search(message)
    if assigned is not None:
        return CaptureError(
            f"forward() replaces the tensor {assigned[1]!r} in every call, so the model's output "
            "may depend on the calls before it; explain a model that takes the tensor as an input"
        )
    custom = _CUSTOM_OPERATION.search(message)
    if custom is not None:
        return CaptureError(
            f"forward() calls the custom operation {custom[1]}{where}, which dmbp cannot look "
            "into; write it with PyTorch's own operations while the model is explained"
        )
    if ".numpy()" in message or "numpy" in message.lower():
        return CaptureError(
            f"forward() computes with NumPy{where}, which a graph of PyTorch's operations cannot "
            "contain; use torch instead"
        )
    if type(error).__name__ == "UnsupportedOperatorException":
        operation = message.partition(" ")[0]
        cause = cause_of(operation)
        return CaptureError(
            f"{operation}{where} cannot be frozen at an input: {cause.reason}; {cause.way_out}"
        )
    return CaptureError(
        f"torch.export cannot turn the model into a graph, because forward(){where} does what it "
        f"does not support: {message}"
    )


def _quantised_modules(model: nn.Module) -> Iterator[str]:
    """Yield the paths of modules with weights that PyTorch's integer kernels have packed."""
    for path, module in model.named_modules():
        values: Mapping[str, Any] = vars(module)
        if isinstance(module, TorchScriptModule):
            values = module.plain_values
        if any(_is_packed(value) for value in values.values()):
            own = path.removeprefix("inner").removeprefix(".")
            yield own.removesuffix("_packed_params").removesuffix(".") or type(module).__name__


def _is_packed(value: Any) -> bool:
    is_quantised = isinstance(value, Tensor) and value.is_quantized
    return is_quantised or (
        isinstance(value, torch.ScriptObject) and "quantized" in str(value._type())
    )
