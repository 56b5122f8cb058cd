"""The re-initialisation check: a map that stays the same when the model forgets explains nothing.

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

from dmbp.errors import InputError, ModelError
from dmbp.linear import Linearizer, Rows, Target
from dmbp.linear.capture import evaluating, first_line
from dmbp.names import suggestion


def reinitialisation(
    method: Callable[[nn.Module], Any],
    model: nn.Module,
    inputs: Tensor,
    target: Target,
    *,
    layer: str | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The rank correlation of each row's map with that of a re-initialised model, (rows,).

    `method` makes an attribution method from a model: a row of `dmbp.methods()`, or a class such as
    Captum's. `layer` names the layer that forgets, where it is not the last to run.
    """
    _, _, rows = Linearizer(model).rows(inputs, target=target)
    asked = _by_image(rows)
    fresh = reinitialised(model, inputs, layer=layer, generator=generator)
    before, after = (method(net).attribute(inputs, target=asked) for net in (model, fresh))
    return rank_correlation(before, after)


def _by_image(rows: Rows) -> Any:
    """What the unchanged model is asked: where no target was given, its own top class."""
    images = sorted(set(rows.image))
    labels = [
        [label for k, label in zip(rows.image, rows.labels, strict=True) if k == wanted]
        for wanted in images
    ]
    if any(len(own) > 1 for own in labels):
        return labels
    return [label for (label,) in labels]


def reinitialised(
    model: nn.Module,
    inputs: Tensor,
    *,
    layer: str | None = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """A copy of the model whose last layer has forgotten; without a generator, always the same.

    Refused where some output does not notice, as of a model with two heads: name a `layer` then.
    """
    if not isinstance(model, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ModelError("only an nn.Module can be re-initialised, not an exported program")
    try:
        fresh = copy.deepcopy(model)
    except RuntimeError as error:
        raise ModelError(f"the model cannot be copied: {first_line(error)}") from error
    name = _last_layer(fresh, inputs) if layer is None else layer
    weight = _weight(fresh, name)
    generator = generator or torch.Generator().manual_seed(0)
    with torch.no_grad():
        drawn = torch.randn(weight.shape, generator=generator, device=generator.device)
        deviation = float(weight.std()) if weight.numel() > 1 else float(weight.abs().sum())
        weight.copy_(drawn * deviation)
        bias = getattr(fresh.get_submodule(name), "bias", None)
        if isinstance(bias, nn.Parameter):
            bias.zero_()
    with evaluating(model), evaluating(fresh):
        before, after = (Linearizer(net).outputs(inputs) for net in (model, fresh))
    same = (before == after).all(0)
    if bool(same.any()):
        raise ModelError(
            f"class {int(same.int().argmax())} does not notice when {name!r}, the last layer to "
            "run, is re-initialised; say which layer is to forget with layer="
        )
    return fresh


def _weight(model: nn.Module, name: str) -> nn.Parameter:
    """The weight of a layer by its name."""
    modules = dict(model.named_modules())
    if name not in modules:
        raise InputError(f"the model has no layer {name!r}; {suggestion(name, list(modules))}")
    weight = getattr(modules[name], "weight", None)
    if not isinstance(weight, nn.Parameter):
        raise ModelError(
            f"{name or 'the model itself'!r} has no plain weight to draw afresh (is it "
            "parametrised, or a tensor used in forward()?); name another layer with layer="
        )
    return weight


def _last_layer(model: nn.Module, inputs: Tensor) -> str:
    """The last module with a weight matrix of its own that runs."""
    names = {module: name for name, module in model.named_modules()}
    ran: list[nn.Module] = []

    def remember(module: nn.Module, *_: object) -> None:
        own = list(module.parameters(recurse=False))
        parametrised = "parametrizations" in dict(module.named_children())
        if parametrised or any(parameter.dim() > 1 for parameter in own):
            ran.append(module)

    handles = [module.register_forward_hook(remember) for module in names]
    try:
        with torch.no_grad(), evaluating(model):
            model(inputs[:1].clone())
    finally:
        for handle in handles:
            handle.remove()
    if not ran:
        raise ModelError("the model has no layer with a weight, so none can be re-initialised")
    return names[ran[-1]]


def rank_correlation(first: Tensor, second: Tensor) -> Tensor:
    """Spearman's correlation of two batches of maps, pixel by pixel, (images,).

    Equal pixels share their mean rank. A map that is the same everywhere has no order to compare:
    its correlation counts as 0.
    """
    known_form = first.dim() in (2, 4) and first.dim() == second.dim()
    if not known_form or (len(first), first.shape[2:]) != (len(second), second.shape[2:]):
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
