"""The linear network: a model frozen at an input, as an affine map. Read this file first.

Freezing everything that is not linear at x turns a network into an affine map with the same value
at x. A mask σ on the output of every activation (a *site*) scales what passes there:

    value()          y = F(x)                                the model's own score
    value(masks)     y(σ) = w·[Σ_L Ŵ_L … Σ_1 Ŵ_1] x + …      Eq. 9, with all biases (Eq. 11)
    pullback(masks)  ∇_x y(σ), the linear map from pixels to the score

    >>> net = dmbp.linearize(model, images, target=3)
    >>> torch.equal(net.value(), model(images)[:, 3])
    True
    >>> net.pullback({net.sites[0].name: torch.zeros(net.sites[0].shape)}).abs().max().item()
    0.0

The paper computes y(σ) by a masked backward pass, Σ ∇F·x + Σ ∇b·b (Algorithm 1). A masked *forward*
pass of the frozen network gives the same number, and it counts every bias, including the hidden
ones of batch norm, without listing them. Its gradient needs one backward pass instead of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dmbp.errors import InputError
from dmbp.linear.steps import FrozenGraph, LinearStep, Site
from dmbp.linear.targets import TargetRows
from dmbp.precision import full_precision

Masks = Mapping[str, Tensor]
"""Masks by site name, each with its site's shape; a site without one is not masked."""

NO_SITES = (
    "the model has no activation to put a mask on: if it is affine, "
    "dmbp.linearize(model, inputs).pullback() is its whole explanation; if forward() writes out a "
    "ReLU, such as x * (x > 0), use torch.relu"
)

AtSite = Callable[[Site, list[Tensor]], list[Tensor]]
"""Receives the activations of all streams at a site, and returns those that pass on."""

AtStep = Callable[[LinearStep, list[Any]], list[Any]]
"""Receives the results of all streams at a step, and returns those that pass on."""


class LinearNetwork:
    """A model frozen at a batch of inputs, with one score for each row.

    A row is one target of one image and is frozen at that image. Its score is outputs · `weights` +
    `constant`; the constant is zero unless the target is a function.

    Args:
        frozen: The steps of the network, frozen at `inputs`.
        inputs: The image of each row.
        rows: The target of each row.
        exactness: The relative error of the network's output against the model's. If smooth
            activations are approximated by pieces, it is the error of the tangents instead.
        approximation_error: The relative error that such pieces introduce.
        tangent: The weights and the constant of the scores, if they are known already.

    Attributes:
        sites: The activations that may carry a mask, in the order of the forward pass.
    """

    def __init__(
        self,
        frozen: FrozenGraph,
        inputs: Tensor,
        rows: TargetRows,
        *,
        exactness: float = math.nan,
        approximation_error: float = 0.0,
        tangent: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.inputs = inputs
        self.rows = rows
        self.exactness = exactness
        self.approximation_error = approximation_error
        self.sites: tuple[Site, ...] = tuple(s.site for s in frozen.steps if s.site is not None)
        self.frozen = frozen
        self.weights, self.constant = tangent or rows.tangent(frozen.output)

    @property
    def other_dtypes(self) -> tuple[torch.dtype, ...]:
        """The floating-point dtypes that activations are cast to, other than the inputs' own."""
        settings = [v for s in self.frozen.steps for v in (*s.arguments, *s.keywords.values())]
        casts = [v for v in settings if isinstance(v, torch.dtype) and v.is_floating_point]
        return tuple(dict.fromkeys(cast for cast in casts if cast != self.inputs.dtype))

    @full_precision()
    def value(self, masks: Masks | None = None) -> Tensor:
        """Return the score of every row with each site scaled by its mask.

        Args:
            masks: Masks by site name; None masks nothing, which gives the model's own score.

        Returns:
            The scores, (rows,).

        Raises:
            InputError: If a mask's name or shape is not that of a site.
        """
        return self.propagate([self.inputs], self._scaled_by(masks or {}))[0]

    @full_precision()
    def pullback(self, masks: Masks | None = None) -> Tensor:
        """Return the gradient of `value(masks)` with respect to the inputs.

        Args:
            masks: Masks by site name; None masks nothing.

        Returns:
            The linear map from pixels to the score of every row, shaped like the inputs.

        Raises:
            InputError: If a mask's name or shape is not that of a site.
        """
        return self.pullback_through(self._scaled_by(masks or {}))

    @full_precision()
    def pullback_through(self, at_site: AtSite) -> Tensor:
        """Return the gradient with respect to the inputs of `propagate([inputs], at_site)`."""
        with torch.inference_mode(False), torch.enable_grad():
            inputs = self.inputs.detach().requires_grad_()
            score = self.propagate([inputs], at_site)[0]
            return torch.autograd.grad(score.sum(), inputs)[0]

    def propagate(self, streams: Sequence[Tensor], at_site: AtSite) -> list[Tensor]:
        """Run several inputs through the network side by side; return each one's scores, (rows,).

        At every site, in order, `at_site` receives the activations of all streams and returns those
        that pass on. Masks, their initialisation and attribution rules are all applied there.
        """

        def at_step(step: LinearStep, results: list[Any]) -> list[Any]:
            return results if step.site is None else at_site(step.site, results)

        return self.propagate_steps(streams, at_step)

    def propagate_steps(self, streams: Sequence[Tensor], at_step: AtStep) -> list[Tensor]:
        """Do what `propagate` does, but call `at_step` at every step, not only at sites."""
        return [self.score(output) for output in run(self.frozen, streams, at_step)]

    def score(self, outputs: Tensor) -> Tensor:
        """Return the score of every row from the network's outputs (rows, classes)."""
        return (outputs * self.weights).sum(1) + self.constant

    def _scaled_by(self, masks: Masks) -> AtSite:
        unknown = set(masks) - {site.name for site in self.sites}
        if unknown:
            raise InputError(f"the network has no site named {sorted(unknown)[0]!r}")
        for site in self.sites:
            if site.name in masks and tuple(masks[site.name].shape) != site.shape:
                raise InputError(
                    f"the mask of {site.name!r} has shape {tuple(masks[site.name].shape)}, "
                    f"its site {site.shape}"
                )

        def scale(site: Site, streams: list[Tensor]) -> list[Tensor]:
            mask = masks.get(site.name)
            return streams if mask is None else [stream * mask for stream in streams]

        return scale


def run(frozen: FrozenGraph, streams: Sequence[Tensor], at_step: AtStep | None) -> list[Tensor]:
    """Return the frozen graph's outputs (rows, classes) for several inputs side by side."""
    slots: list[dict[int, Any]] = [{0: stream} for stream in streams]
    for step in frozen.steps:
        results = [step.apply(values) for values in slots]
        if at_step is not None:
            results = at_step(step, results)
        for values, result in zip(slots, results, strict=True):
            values[step.output] = result
            for index in step.finished:
                del values[index]
    return [values[frozen.result] for values in slots]
