"""The last layer of a model, which is to forget: the last to run that has a weight matrix.

    >>> last_layer(model, lambda: model(images))
    '3'

A program of `torch.export` runs no modules, but its graph reads their parameters, by the names they
had, in the order in which they ran.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.fx import GraphModule

from dmbp.errors import InputError, ModelError
from dmbp.linear.model import evaluating
from dmbp.names import suggestion

WEIGHT = "weight"


def last_layer(model: nn.Module, run: Callable[[], object]) -> str:
    """The name of the last layer; `run` runs the model."""
    ran: list[str] = []

    def watch(name: str, module: nn.Module) -> Callable[..., None]:
        def remember(*_: object) -> None:
            ran.extend(_layers(name, module))

        return remember

    handles = [m.register_forward_hook(watch(name, m)) for name, m in model.named_modules()]
    try:
        with torch.no_grad(), evaluating(model):
            run()
    finally:
        for handle in handles:
            handle.remove()
    if not ran:
        raise ModelError("the model has no layer with a weight, so none can be re-initialised")
    return ran[-1]


def plain_weight(model: nn.Module, name: str) -> nn.Parameter:
    """The weight of a layer by its name."""
    modules = dict(model.named_modules())
    if name not in modules:
        raise InputError(f"the model has no layer {name!r}; {suggestion(name, list(modules))}")
    weight = getattr(modules[name], WEIGHT, None)
    if not isinstance(weight, nn.Parameter):
        raise ModelError(
            f"{name or 'the model itself'!r} has no plain weight to draw afresh (is it "
            "parametrised, or a tensor used in forward()?); name another layer with layer="
        )
    return weight


def _layers(name: str, module: nn.Module) -> list[str]:
    """The layers that run when a module does, itself or those in its graph, in their order."""
    if isinstance(module, GraphModule) and (read := _read(module)):
        return [f"{name}.{layer}".strip(".") for layer in read]
    own = list(module.parameters(recurse=False))
    parametrised = "parametrizations" in dict(module.named_children())
    return [name] if parametrised or any(parameter.dim() > 1 for parameter in own) else []


def _read(module: GraphModule) -> list[str]:
    """The layers whose matrices a graph reads, by each operation that does."""
    matrices = {name for name, tensor in module.named_parameters() if tensor.dim() > 1}
    return [
        str(parent.target).rpartition(".")[0]
        for node in module.graph.nodes
        for parent in node.all_input_nodes
        if parent.op == "get_attr" and parent.target in matrices
    ]
