"""The last layer of a model, which is to forget: the last to run that has a weight matrix.

    >>> last_layer(model, lambda: model(images))
    '3'

A program of `torch.export` runs no modules, but its graph reads their parameters, by the names they
had, in the order in which they ran.

The re-initialisation check: a map that stays the same when the model forgets explains nothing.

The last layer's weights are drawn afresh from a normal distribution (of their own deviation, the
bias zero); the score is Spearman's rank correlation between the maps before and after. Near zero
the map depends on what the model has learned; near one it does not.

    >>> from dmbp.attribution import methods
    >>> reinitialisation(methods()["gradient"], model, images, 3).shape
    torch.Size([1])

Adebayo et al., "Sanity Checks for Saliency Maps", NeurIPS 2018.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from dmbp.errors import InputError, ModelError, first_line, suggestion
from dmbp.linear import Linearizer, Target, TargetRows
from dmbp.linear.model.signature import ExtraInputs, Output
from dmbp.linear.model.wrappers import Model, evaluating

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


def layer_weight(model: nn.Module, name: str) -> nn.Parameter:
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
    """The rank correlation of each row's map with that of a re-initialised model, (rows,).

    `method` makes an attribution method from a model: a row of `dmbp.methods()`, or a class such as
    Captum's. `layer` names the layer that forgets, where it is not the last to run. An `output` is
    handed to `method` too, and `additional_forward_args` to its `attribute`.
    """
    beside = {"output": output, "additional_forward_args": additional_forward_args}
    asked = _by_image(_asked(model, inputs, **beside).rows(inputs, target=target)[2])
    fresh = with_reinitialised_layer(model, inputs, layer=layer, generator=generator, **beside)
    made = {} if output is None else {"output": output}
    given = {k: v for k, v in beside.items() if k != "output" and v is not None}
    before, after = (
        method(net, **made).attribute(inputs, target=asked, **given)
        for net in (_module(model), fresh)
    )
    return rank_correlation(before, after)


def _by_image(rows: TargetRows) -> Any:
    """What the unchanged model is asked: where no target was given, its own top class."""
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
    """A copy of the model whose last layer has forgotten; without a generator, always the same.

    Refused where some output does not notice, as of a model with two heads: name a `layer` then.
    An exported program has the layers of the module it was exported from. `output` and
    `additional_forward_args` are as the methods take them.
    """
    try:
        fresh = copy.deepcopy(_module(model))
    except RuntimeError as error:
        raise ModelError(f"the model cannot be copied: {first_line(error)}") from error
    beside = (output, additional_forward_args)
    run = _asked(fresh, inputs, *beside).outputs
    name = last_layer(fresh, lambda: run(inputs)) if layer is None else layer
    weight = layer_weight(fresh, name)
    generator = generator or torch.Generator().manual_seed(0)
    with torch.no_grad():
        drawn = torch.randn(weight.shape, generator=generator, device=generator.device)
        deviation = float(weight.std()) if weight.numel() > 1 else float(weight.abs().sum())
        weight.copy_(drawn * deviation)
        bias = getattr(fresh.get_submodule(name), "bias", None)
        if isinstance(bias, nn.Parameter):
            bias.zero_()
    with evaluating(model), evaluating(fresh):
        before, after = (_asked(net, inputs, *beside).outputs(inputs) for net in (model, fresh))
    same = (before == after).all(0)
    if bool(same.any()):
        raise ModelError(
            f"class {int(same.int().argmax())} does not notice when {name!r}, the last layer to "
            "run, is re-initialised; say which layer is to forget with layer="
        )
    return fresh


def _asked(
    model: Model, inputs: Tensor, output: Output, additional_forward_args: Any
) -> Linearizer:
    """What runs a model with its other inputs, and picks its output."""
    held = ExtraInputs.of(additional_forward_args, images=len(inputs))
    return Linearizer(model, output=output).holding(held)


def _module(model: Model) -> nn.Module:
    """The model as a module; that of a program says that it trains, but has no modes."""
    if not isinstance(model, ExportedProgram):
        return model
    module = model.module()
    for part in module.modules():
        part.training = False
    return module


def rank_correlation(first: Tensor, second: Tensor) -> Tensor:
    """Spearman's correlation of two batches of maps, pixel by pixel, (images,).

    Equal pixels share their mean rank. A map that is the same everywhere has no order to compare:
    its correlation counts as 0.
    """
    known_form = first.dim() in (2, 4) and first.dim() == second.dim()
    pixels = [
        (len(maps), maps.shape[1:] if maps.dim() == 2 else maps.shape[2:])
        for maps in (first, second)
    ]
    if not known_form or pixels[0] != pixels[1]:
        raise InputError(
            f"maps of shape {tuple(first.shape)} and {tuple(second.shape)} cannot be compared"
        )
    one, other = (_mean_ranks(_pixels(maps)) for maps in (first, second))
    one, other = one - one.mean(1, keepdim=True), other - other.mean(1, keepdim=True)
    product = (one * other).sum(1)
    size = (one.square().sum(1) * other.square().sum(1)).sqrt()
    return torch.where(size > 0, product / size.clamp(min=1e-300), 0.0)


def _pixels(maps: Tensor) -> Tensor:
    if not torch.isfinite(maps).all():
        raise InputError("a map contains NaN or infinity, so its pixels have no order")
    return (maps.sum(1) if maps.dim() > 2 else maps).flatten(1)


def _mean_ranks(values: Tensor) -> Tensor:
    """Ranks (images, pixels) in double precision; equal values share their mean."""
    ranks = torch.empty(values.shape, dtype=torch.float64, device=values.device)
    for k, row in enumerate(values):
        _, inverse, count = row.unique(return_inverse=True, return_counts=True)
        last = count.cumsum(0).double()
        ranks[k] = (last - (count.double() - 1) / 2)[inverse]
    return ranks
