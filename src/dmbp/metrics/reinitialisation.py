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
from typing import Any, cast

import torch
from torch import Tensor, nn

from dmbp.errors import InputError, ModelError
from dmbp.linear import Linearizer, Target
from dmbp.linear.capture import evaluating


def reinitialisation(
    method: Callable[[nn.Module], Any],
    model: nn.Module,
    inputs: Tensor,
    target: Target,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The rank correlation of each image's map with that of a re-initialised model, (images,).

    `method` makes an attribution method from a model: a row of `dmbp.methods()`, or a class.
    """
    outputs = Linearizer(model).rows(inputs, target=target)
    asked = [list(labels) for labels in _by_image(outputs[2].image, outputs[2].labels)]
    fresh = reinitialised(model, inputs, generator=generator)
    before, after = (method(net).attribute(inputs, target=asked) for net in (model, fresh))
    return rank_correlation(before, after)


def _by_image(image: tuple[int, ...], labels: tuple[Any, ...]) -> list[list[Any]]:
    """The labels asked of the unchanged model: where none was given, its own top class."""
    return [
        [label for k, label in zip(image, labels, strict=True) if k == wanted]
        for wanted in sorted(set(image))
    ]


def reinitialised(
    model: nn.Module, inputs: Tensor, *, generator: torch.Generator | None = None
) -> nn.Module:
    """A copy of the model whose last layer has forgotten; without a generator, always the same."""
    if not isinstance(model, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ModelError("only an nn.Module can be re-initialised, not an exported program")
    fresh = copy.deepcopy(model)
    layer = _last_layer(fresh, inputs)
    generator = generator or torch.Generator().manual_seed(0)
    weight = cast("nn.Parameter", layer.weight)
    with torch.no_grad():
        drawn = torch.randn(weight.shape, generator=generator, device=generator.device)
        weight.copy_(drawn * float(weight.std()))
        if isinstance(layer.bias, nn.Parameter):
            layer.bias.zero_()
    return fresh


def _last_layer(model: nn.Module, inputs: Tensor) -> nn.Module:
    """The last module with a weight matrix that runs."""
    ran: list[nn.Module] = []

    def remember(module: nn.Module, *_: object) -> None:
        weight = getattr(module, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.dim() > 1 and hasattr(module, "bias"):
            ran.append(module)

    handles = [module.register_forward_hook(remember) for module in model.modules()]
    try:
        with torch.no_grad(), evaluating(model):
            model(inputs[:1].clone())
    finally:
        for handle in handles:
            handle.remove()
    if not ran:
        raise ModelError("the model has no layer with a weight, so none can be re-initialised")
    return ran[-1]


def rank_correlation(first: Tensor, second: Tensor) -> Tensor:
    """Spearman's correlation of two batches of maps, pixel by pixel, (images,).

    Equal pixels share their mean rank. A map that is the same everywhere has no order to compare:
    its correlation counts as 0.
    """
    if first.shape[0] != second.shape[0] or first.shape[2:] != second.shape[2:]:
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
