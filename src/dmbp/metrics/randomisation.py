"""Randomisation: maps should change as the model's weights become random, and with the class.

**Cascading randomisation** (MPRT, the model parameter randomisation test). The layers' weights are
drawn again one layer after the other, from the last to the first ("top_down") or from the first to
the last ("bottom_up"), and what was drawn before stays. After each stage, Spearman's rank
correlation between the new map and the original one is taken. Their mean is the score: near zero,
the map depends on what the model has learned.

    >>> from dmbp.attribution import methods
    >>> found = cascade(methods()["gradient"], model, images, 3)
    >>> found.layers, found.correlations.shape
    (('3', '0'), torch.Size([1, 2]))

**Smooth MPRT** (sMPRT) compares means of maps over noisy copies of each image (`samples=`), because
the noise of gradients alone makes maps of random networks uncorrelated, whatever they show.

**Random logit.** The rank correlation between the map of the target and that of another class,
drawn at random. Near 1, the map does not say what speaks for this class rather than another.

    >>> random_logit(methods()["gradient"], model, images, 3).shape
    torch.Size([1])

A layer here is one with a weight matrix or kernel. It is drawn from a normal distribution with the
same standard deviation, and its bias is set to zero, as in `reinitialisation`. The statistics and
factors of norm layers stay, so that activations keep their size.

Adebayo et al., "Sanity Checks for Saliency Maps", NeurIPS 2018; Hedström, Weber, Lapuschkin and
Höhne, "A Fresh Look at Sanity Checks for Saliency Maps", xAI 2024 (sMPRT; the order from the first
layer to the last); Sixt, Granz and Landgraf, "When Explanations Lie", ICML 2020 (random logit).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dmbp.errors import InputError, ModelError, first_line, require_known
from dmbp.linear import Target
from dmbp.linear.model.signature import Output
from dmbp.linear.model.wrappers import Model
from dmbp.metrics.insertion import require_count
from dmbp.metrics.reinitialisation import (
    as_module,
    draw_layer,
    layers_run,
    make_runner,
    rank_correlation,
    targets_by_image,
)

Order = Literal["top_down", "bottom_up"]
ORDERS = ("top_down", "bottom_up")

NOISE = 0.2
"""The standard deviation of sMPRT's noise, as a share of each image's range."""

SMOOTHED = 10
"""Noisy copies of an image in sMPRT, if the caller does not say otherwise."""


@dataclass(frozen=True)
class Cascade:
    """Rank correlations of maps with the original ones, stage by stage.

    Attributes:
        layers: The last layer drawn in each stage, in the order of the stages.
        correlations: The correlation after each stage, (images, stages).
    """

    layers: tuple[str, ...]
    correlations: Tensor

    @property
    def score(self) -> Tensor:
        """The mean over all stages, (images,); near zero if maps depend on the weights."""
        return self.correlations.mean(1)


def cascade(
    method: Callable[..., Any],
    model: Model,
    inputs: Tensor,
    target: Target,
    *,
    order: Order = "top_down",
    stages: int | None = None,
    samples: int = 1,
    noise: float = NOISE,
    generator: torch.Generator | None = None,
    output: Output = None,
    additional_forward_args: Any = None,
) -> Cascade:
    """Draw the weights of more and more layers, and compare maps with the original ones.

    Args:
        method: Makes an attribution method from a model: a value of `dmbp.methods()`, or a class
            such as Captum's.
        model: The model that the maps explain; it is not changed.
        inputs: Images, or other inputs of the model.
        target: One target for each image, or one for all. None takes the unchanged model's highest
            output for all models.
        order: "top_down" begins with the last layer, "bottom_up" with the first.
        stages: How many times maps are compared, evenly spread over the layers; the last time, all
            are random. By default after every layer.
        samples: Of how many noisy copies of each image maps are averaged: 1 is MPRT without noise,
            more is sMPRT.
        noise: The standard deviation of this noise, as a share of each image's range.
        generator: Draws the new weights and the noise; without one, they are always the same.
        output: Which of the model's outputs is explained, as for the methods; also passed to
            `method`.
        additional_forward_args: The model's other inputs; also passed to `attribute`.

    Returns:
        The layers and the correlations.

    Raises:
        InputError: If an option is out of range, or maps contain NaN or infinity.
        ModelError: If the model cannot be copied, or has no layer with a plain weight.
    """
    require_known("order", order, ORDERS)
    require_count("samples", samples)
    extra = {"output": output, "additional_forward_args": additional_forward_args}
    rows = make_runner(model, inputs, **extra).target_rows(inputs, target)[2]
    arguments: dict[str, Any] = {"target": targets_by_image(rows)}
    if additional_forward_args is not None:
        arguments["additional_forward_args"] = additional_forward_args
    settings = {} if output is None else {"output": output}
    seed = torch.Generator().manual_seed(0) if generator is None else generator
    copies = [inputs] if samples == 1 else noisy_copies(inputs, samples, noise, seed)
    before = _mean_map(method(as_module(model), **settings), copies, arguments)
    randomised = Randomised(model, inputs, stages=stages, generator=seed, **extra)
    # One explainer for all stages: what it has captured reads the weights anew.
    explainer = method(randomised.model, **settings)
    names: list[str] = []
    correlations: list[Tensor] = []
    for name in randomised.run(order):
        names.append(name)
        correlations.append(rank_correlation(before, _mean_map(explainer, copies, arguments)))
    return Cascade(tuple(names), torch.stack(correlations, 1))


def noisy_copies(
    inputs: Tensor,
    samples: int,
    noise: float = NOISE,
    generator: torch.Generator | None = None,
) -> list[Tensor]:
    """Return noisy copies of inputs; the noise is the same for every image.

    Args:
        inputs: Images, or other inputs.
        samples: How many copies.
        noise: The standard deviation of the noise, as a share of each image's range.
        generator: Draws the noise; without one, it is always the same.

    Returns:
        The copies.
    """
    generator = generator or torch.Generator().manual_seed(0)
    flat = inputs.flatten(1)
    width = noise * (flat.amax(1) - flat.amin(1)).view(-1, *(1,) * (inputs.dim() - 1))
    return [
        inputs
        + width
        * torch.randn(inputs.shape[1:], generator=generator, device=generator.device).to(inputs)
        for _ in range(samples)
    ]


def _mean_map(explainer: Any, copies: Sequence[Tensor], arguments: dict[str, Any]) -> Tensor:
    maps = [explainer.attribute(images, **arguments) for images in copies]
    return maps[0] if len(maps) == 1 else torch.stack(maps).mean(0)


class Randomised:
    """A copy of a model whose layers become random, stage by stage.

    A cascade may be run several times, and in both orders: it starts from the model's own weights
    and draws the same numbers.

    Args:
        model: The model, which is not changed.
        inputs: Inputs to run it on, to find the order of its layers.
        stages: How many stages; None makes one of each layer.
        generator: Draws the weights.
        output: Which of the model's outputs is explained.
        additional_forward_args: The model's other inputs.

    Raises:
        InputError: If `stages` is not a whole number of 1 or more.
        ModelError: If the model cannot be copied, or has no layer with a plain weight.
    """

    def __init__(
        self,
        model: Model,
        inputs: Tensor,
        *,
        stages: int | None = None,
        generator: torch.Generator | None = None,
        output: Output = None,
        additional_forward_args: Any = None,
    ) -> None:
        try:
            self.model: nn.Module = copy.deepcopy(as_module(model))
        except RuntimeError as error:
            raise ModelError(f"the model cannot be copied: {first_line(error)}") from error
        run = make_runner(self.model, inputs, output, additional_forward_args).outputs
        self._layers = layers_run(self.model, lambda: run(inputs))
        if stages is not None:
            require_count("stages", stages)
        self._stages = min(stages or len(self._layers), len(self._layers))
        self._generator = generator or torch.Generator().manual_seed(0)
        self._state = self._generator.get_state()
        self._weights = {
            name: [part.detach().clone() for part in self.model.get_submodule(name).parameters()]
            for name in self._layers
        }

    def run(self, order: Order) -> Iterator[str]:
        """Yield the last layer drawn in each stage, once the model has its new weights."""
        self._restore()
        layers = self._layers[::-1] if order == "top_down" else self._layers
        ends = [round((k + 1) * len(layers) / self._stages) for k in range(self._stages)]
        for start, end in zip([0, *ends], ends, strict=False):
            for name in layers[start:end]:
                draw_layer(self.model, name, self._generator)
            yield layers[end - 1]

    @torch.no_grad()
    def _restore(self) -> None:
        self._generator.set_state(self._state)
        for name, weights in self._weights.items():
            own = self.model.get_submodule(name).parameters()
            for parameter, weight in zip(own, weights, strict=True):
                parameter.copy_(weight)


def random_logit(
    method: Callable[..., Any],
    model: Model,
    inputs: Tensor,
    target: Target,
    *,
    generator: torch.Generator | None = None,
    output: Output = None,
    additional_forward_args: Any = None,
) -> Tensor:
    """Return the rank correlation of each map with that of another class, drawn at random.

    Args:
        method: Makes an attribution method from a model, as for `cascade`.
        model: The model that the maps explain.
        inputs: Images, or other inputs of the model.
        target: One class for each image, or one for all. None takes each image's highest output.
        generator: Draws the classes; without one, they are always the same.
        output: Which of the model's outputs is explained; also passed to `method`.
        additional_forward_args: The model's other inputs; also passed to `attribute`.

    Returns:
        The correlations (images,), from −1 to 1; near 1, maps do not depend on the class.

    Raises:
        InputError: If the model has a single class, or a target is not a class.
        TargetError: If the target does not fit the model or the images.
    """
    runner = make_runner(model, inputs, output, additional_forward_args)
    _, outputs, rows = runner.target_rows(inputs, target)
    own = targets_by_image(rows)
    others = other_classes(own, outputs.shape[1], generator)
    arguments: dict[str, Any] = {}
    if additional_forward_args is not None:
        arguments["additional_forward_args"] = additional_forward_args
    explainer = method(as_module(model), **({} if output is None else {"output": output}))
    maps = [explainer.attribute(inputs, target=classes, **arguments) for classes in (own, others)]
    return rank_correlation(maps[0], maps[1])


def other_classes(
    classes: Sequence[Any], count: int, generator: torch.Generator | None = None
) -> list[int]:
    """Return a class other than its own for each image, out of `count`.

    The first number drawn is used for all images, so that a result does not depend on its batch.

    Raises:
        InputError: If there is a single class, or a target is not a class.
    """
    if count < 2:
        raise InputError("random logit needs a model with two classes or more")
    if not all(isinstance(own, int) for own in classes):
        raise InputError("random logit needs one class for each image as its target")
    generator = generator or torch.Generator().manual_seed(0)
    step = int(torch.randint(1, count, (), generator=generator, device=generator.device))
    return [(own + step) % count for own in classes]
