"""The re-initialisation check: a map that does not depend on the model's weights explains nothing.

The last layer's weights are drawn again from a normal distribution with the same standard
deviation, and its bias is set to zero. The score is Spearman's rank correlation between the maps
before and after: near zero, the map depends on what the model has learned; near one, it does not.

    >>> from dmbp.attribution import methods
    >>> reinitialisation(methods()["gradient"], model, images, 3).shape
    torch.Size([1])

The last layer is the last one to run that has a weight matrix:

    >>> last_layer(model, lambda: model(images))
    '3'

Adebayo et al., "Sanity Checks for Saliency Maps", NeurIPS 2018.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from dmbp.devices import in_float64
from dmbp.errors import InputError, ModelError, first_line, suggestion
from dmbp.linear import Target, TargetRows
from dmbp.linear.model.runner import ModelRunner
from dmbp.linear.model.signature import ExtraInputs, Output
from dmbp.linear.model.torchscript.module import without_torchscript
from dmbp.linear.model.wrappers import Model, evaluating, force_eval


def reinitialisation(
    method: Callable[..., Any],
    model: Model,
    inputs: Tensor,
    target: Target,
    *,
    layer: str | None = None,
    generator: torch.Generator | None = None,
    output: Output = None,
    additional_forward_args: Any = None,
) -> Tensor:
    """Return the rank correlation of each map with that of a re-initialised model.

    Args:
        method: Makes an attribution method from a model: a value of `dmbp.methods()`, or a class
            such as Captum's.
        model: The model that the maps explain.
        inputs: Images, or other inputs of the model.
        target: The target, as for `attribute`. None takes the unchanged model's highest output for
            both models.
        layer: The layer to re-initialise; by default the last one to run.
        generator: Draws the new weights; without one, they are always the same.
        output: Which of the model's outputs is explained, as for the methods; also passed to
            `method`.
        additional_forward_args: The model's other inputs; also passed to `attribute`.

    Returns:
        The correlations (rows,): near zero if the map depends on what the model has learned.

    Raises:
        InputError: If there is no such layer, or the maps contain NaN or infinity.
        ModelError: If the layer cannot be re-initialised, or an output does not depend on it.
    """
    extra = {"output": output, "additional_forward_args": additional_forward_args}
    rows = make_runner(model, inputs, **extra).target_rows(inputs, target)[2]
    fresh = with_reinitialised_layer(model, inputs, layer=layer, generator=generator, **extra)
    settings = {} if output is None else {"output": output}
    arguments: dict[str, Any] = {"target": targets_by_image(rows)}
    if additional_forward_args is not None:
        arguments["additional_forward_args"] = additional_forward_args
    before, after = (
        method(net, **settings).attribute(inputs, **arguments) for net in (as_module(model), fresh)
    )
    return rank_correlation(before, after)


def targets_by_image(rows: TargetRows) -> Any:
    """Return the targets of rows in the form that `attribute` takes."""
    images = sorted(set(rows.image))
    labels = [
        [label for k, label in zip(rows.image, rows.labels, strict=True) if k == wanted]
        for wanted in images
    ]
    if any(len(own) > 1 for own in labels):
        return labels
    return [label for (label,) in labels]


def with_reinitialised_layer(
    model: Model,
    inputs: Tensor,
    *,
    layer: str | None = None,
    generator: torch.Generator | None = None,
    output: Output = None,
    additional_forward_args: Any = None,
) -> nn.Module:
    """Return a copy of the model whose last layer has random weights.

    Args:
        model: The model; an exported program has the layers of the module it was exported from.
        inputs: Inputs to run the model on, to determine which layer runs last.
        layer: The layer to re-initialise; by default the last one to run.
        generator: Draws the new weights; without one, they are always the same.
        output: Which of the model's outputs is compared, as for the methods.
        additional_forward_args: The model's other inputs, as for the methods.

    Returns:
        The copy. The model itself is not changed.

    Raises:
        InputError: If there is no such layer.
        ModelError: If the model cannot be copied, the layer has no plain weight, or an output does
            not depend on it, as in a model with two heads.
    """
    try:
        fresh = copy.deepcopy(as_module(model))
    except RuntimeError as error:
        raise ModelError(f"the model cannot be copied: {first_line(error)}") from error
    extra = (output, additional_forward_args)
    run = make_runner(fresh, inputs, *extra).outputs
    name = last_layer(fresh, lambda: run(inputs)) if layer is None else layer
    draw_layer(fresh, name, generator or torch.Generator().manual_seed(0))
    with evaluating(model), evaluating(fresh):
        before, after = (make_runner(net, inputs, *extra).outputs(inputs) for net in (model, fresh))
    same = (before == after).all(0)
    if bool(same.any()):
        which = f"{name!r}, the last layer to run," if layer is None else repr(name)
        raise ModelError(
            f"the output for class {int(same.int().argmax())} does not change when {which} is "
            "re-initialised; name the layer to re-initialise with layer="
        )
    return fresh


@torch.no_grad()
def draw_layer(model: nn.Module, name: str, generator: torch.Generator) -> None:
    """Draw a layer's weight from a normal distribution as wide as before; its bias becomes zero."""
    weight = layer_weight(model, name)
    drawn = torch.randn(weight.shape, generator=generator, device=generator.device)
    deviation = float(weight.std()) if weight.numel() > 1 else float(weight.abs().sum())
    weight.copy_(drawn * deviation)
    bias = getattr(model.get_submodule(name), "bias", None)
    if isinstance(bias, nn.Parameter):
        bias.zero_()


def make_runner(
    model: Model, inputs: Tensor, output: Output, additional_forward_args: Any
) -> ModelRunner:
    """Return a runner of the model with its other inputs and this output."""
    extra = ExtraInputs.of(additional_forward_args, images=len(inputs))
    return ModelRunner(model, output=output).with_extra_inputs(extra)


def as_module(model: Model) -> nn.Module:
    """Return the model as a module that takes hooks, which those of TorchScript do not.

    The module of a program has its training flag cleared.
    """
    if not isinstance(model, ExportedProgram):
        return without_torchscript(model)
    module = model.module()
    force_eval(module)
    return module


def last_layer(model: nn.Module, run: Callable[[], object]) -> str:
    """Return the name of the last layer to run that has a weight matrix; `run` runs the model.

    Raises:
        ModelError: If no layer has a weight matrix.
    """
    return _layers_that_ran(model, run)[-1]


def layers_run(model: nn.Module, run: Callable[[], object]) -> list[str]:
    """Return the layers with a plain weight matrix in the order in which they first run.

    Raises:
        ModelError: If no layer has one.
    """
    modules = dict(model.named_modules())
    names = dict.fromkeys(_layers_that_ran(model, run))
    plain = [name for name in names if isinstance(_weight_of(modules[name]), nn.Parameter)]
    if not plain:
        raise ModelError("the model has no layer with a plain weight that could be drawn afresh")
    return plain


def _weight_of(module: nn.Module) -> object:
    return getattr(module, "weight", None)


def _layers_that_ran(model: nn.Module, run: Callable[[], object]) -> list[str]:
    ran: list[str] = []

    def watch(name: str, module: nn.Module) -> Callable[..., None]:
        def remember(*_: object) -> None:
            ran.extend(_layers_run(name, module))

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
    return ran


def _layers_run(name: str, module: nn.Module) -> list[str]:
    """Return the layers that run when a module runs: itself, or those in its graph, in order."""
    if isinstance(module, GraphModule) and (read := _layers_in_graph(module)):
        return [f"{name}.{layer}".strip(".") for layer in read]
    own = list(module.parameters(recurse=False))
    parametrised = "parametrizations" in dict(module.named_children())
    return [name] if parametrised or any(parameter.dim() > 1 for parameter in own) else []


def _layers_in_graph(module: GraphModule) -> list[str]:
    """Return the layers whose weight matrices a graph reads, in the order in which it reads them.

    An exported program runs no modules, but its graph reads their parameters by their old names.
    """
    matrices = {name for name, tensor in module.named_parameters() if tensor.dim() > 1}
    return [
        str(parent.target).rpartition(".")[0]
        for node in module.graph.nodes
        for parent in node.all_input_nodes
        if parent.op == "get_attr" and parent.target in matrices
    ]


def layer_weight(model: nn.Module, name: str) -> nn.Parameter:
    """Return the weight of the layer with this name.

    Raises:
        InputError: If there is no such layer.
        ModelError: If its weight is not a plain parameter.
    """
    modules = dict(model.named_modules())
    if name not in modules:
        raise InputError(f"the model has no layer {name!r}; {suggestion(name, list(modules))}")
    weight = _weight_of(modules[name])
    if not isinstance(weight, nn.Parameter):
        raise ModelError(
            f"{name or 'the model itself'!r} has no plain weight to draw afresh (is it "
            "parametrised, or a tensor used in forward()?); name another layer with layer="
        )
    return weight


def rank_correlation(first: Tensor, second: Tensor) -> Tensor:
    """Return Spearman's rank correlation between the pixels of two maps, for each image.

    Equal pixels share their mean rank. A constant map has no order, so its correlation is 0.

    Args:
        first: Maps (images, channels, height, width), whose channels are added up, or vectors
            (images, features).
        second: Maps of the same size; the number of channels may differ.

    Returns:
        The correlations (images,), from −1 to 1.

    Raises:
        InputError: If the shapes do not fit, or a map contains NaN or infinity.
    """
    is_supported = first.dim() in (2, 4) and first.dim() == second.dim()
    pixels = [
        (len(maps), maps.shape[1:] if maps.dim() == 2 else maps.shape[2:])
        for maps in (first, second)
    ]
    if not is_supported or pixels[0] != pixels[1]:
        raise InputError(
            f"maps of shape {tuple(first.shape)} and {tuple(second.shape)} cannot be compared"
        )
    ranks = [_mean_ranks(_pixels(maps)) for maps in (first, second)]
    centred = [rank - rank.mean(1, keepdim=True) for rank in ranks]
    product = (centred[0] * centred[1]).sum(1)
    size = (centred[0].square().sum(1) * centred[1].square().sum(1)).sqrt()
    return torch.where(size > 0, product / size.clamp(min=1e-300), 0.0)


def _pixels(maps: Tensor) -> Tensor:
    """Return the sum over channels of each pixel, (images, pixels)."""
    if not torch.isfinite(maps).all():
        raise InputError("a map contains NaN or infinity, so its pixels have no order")
    return (maps.sum(1) if maps.dim() > 2 else maps).flatten(1)


def _mean_ranks(values: Tensor) -> Tensor:
    """Return ranks (images, pixels) in double precision; equal values share their mean rank."""
    values = in_float64(values)
    ranks = torch.empty_like(values)
    for k, row in enumerate(values):
        _, inverse, count = row.unique(return_inverse=True, return_counts=True)
        last = count.cumsum(0).double()
        ranks[k] = (last - (count.double() - 1) / 2)[inverse]
    return ranks
