"""Infidelity, and how a class's probability changes if only what a map shows is left.

**Infidelity.** Random boxes are removed from the image. A map that adds up predicts by how much the
score falls: the sum of its pixels inside the box. Infidelity is the mean squared error,

    E (β Σ_box map − (f(x) − f(x without the box)))²

where β = 1 as in the paper, or the best factor for each image (`scale=True`), because many maps are
not in units of the score. Divided by E (f(x) − f(x without the box))² (`relative=True`), it is the
share of the changes that the map does not predict, from 0 to 1 with the best factor.

    >>> maps = torch.randn(images.shape)
    >>> infidelity(model, images, 3, maps, samples=8).shape
    torch.Size([1])

**Average drop, gain and increase.** The image is multiplied by the map's positive part, divided by
its maximum; the rest of each pixel is the substrate. With the probability Y of the whole image and
O of this one,

    drop        max(0, Y − O) / Y               lower is better
    gain        max(0, O − Y) / (1 − Y)         higher is better
    increase    1 if O > Y, else 0              higher is better

    >>> confidence(model, images, 3, maps).drop.shape
    torch.Size([1])

Yeh, Hsieh, Suggala, Inouye and Ravikumar, "On the (In)fidelity and Sensitivity of Explanations",
NeurIPS 2019; Chattopadhyay, Sarkar, Howlader and Balasubramanian, "Grad-CAM++", WACV 2018 (drop and
increase); Zhang, Torres, Sicre, Avrithis and Ayache, "Opti-CAM", CVIU 2024 (gain).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dmbp.devices import in_float64, on_device
from dmbp.linear import Target
from dmbp.linear.model.runner import ModelRunner
from dmbp.linear.model.signature import ExtraInputs, Output
from dmbp.linear.model.wrappers import Model, evaluating
from dmbp.metrics.insertion import (
    as_floating,
    check_maps,
    check_one_target_each,
    require_count,
    sum_of_channels,
)
from dmbp.metrics.substrates import AutoSubstrate, fill, pick_images, resolve_substrate
from dmbp.precision import full_precision
from dmbp.probabilities import Activation, check_activation

SAMPLES = 64
"""Boxes that infidelity removes."""

BOX_SIDES = (1 / 8, 1 / 2)
"""A box's sides, as shares of the image's, are drawn between these."""


@full_precision()
@torch.no_grad()
def infidelity(
    model: Model,
    inputs: Tensor,
    target: Target,
    attribution: Tensor,
    *,
    samples: int = SAMPLES,
    scale: bool = True,
    relative: bool = False,
    substrate: AutoSubstrate = "auto",
    generator: torch.Generator | None = None,
    internal_batch_size: int = 64,
    output: Output = None,
    additional_forward_args: Any = None,
) -> Tensor:
    """Return the mean squared error with which maps predict how scores change; lower is better.

    Args:
        model: The model that the maps explain.
        inputs: Images (images, channels, height, width), signals, volumes or vectors.
        target: One target for each image, or one for all, as for `attribute`.
        attribution: A map for each image, shaped like the inputs or with one channel.
        samples: How many boxes are removed, one after the other; the same ones for every image.
        scale: Whether each map is multiplied by its best factor first, as by Captum's `normalize`.
        relative: Whether to divide by the mean square of the changes. It is 0 if nothing changes.
        substrate: What replaces the pixels in a box: "blur", "zero", "mean", "noise", "linear", a
            tensor or a function; "auto" is "blur", or "zero" for vectors.
        generator: Draws the boxes; without one, they are always the same.
        internal_batch_size: The most images that the model is run on at once.
        output: Which of the model's outputs is scored, as for the methods.
        additional_forward_args: The model's other inputs, as for the methods.

    Returns:
        The errors (images,), in squared units of the score unless `relative`.

    Raises:
        InputError: If an option is out of range, or maps or substrate do not fit the images.
        TargetError: If the target does not fit the model or the images.
    """
    require_count("samples", samples)
    require_count("internal_batch_size", internal_batch_size)
    check_maps(attribution, inputs)
    pixels = in_float64(sum_of_channels(as_floating(attribution)))
    boxes = random_boxes(tuple(pixels.shape[1:]), samples, generator)
    predicted = pixels.flatten(1) @ boxes.to(pixels).flatten(1).T
    used = resolve_substrate(substrate, inputs)
    runner = ModelRunner(model, output=output)
    extra_inputs = ExtraInputs.of(additional_forward_args, images=len(inputs))
    with evaluating(runner.model):
        inputs, outputs, rows = runner.with_extra_inputs(extra_inputs).target_rows(inputs, target)
        check_one_target_each(rows, inputs)
        whole = rows.scores(outputs)
        boxes = boxes.to(inputs.device)
        repeated = rows.pick([k for k in range(len(rows)) for _ in range(samples)])
        without: list[Tensor] = []
        for indices in repeated.batches(internal_batch_size):
            part = repeated.pick(indices)
            image = list(part.image)
            mask = boxes[[index % samples for index in indices]]
            mixed = fill(inputs[image], mask, pick_images(used, image))
            outputs = runner.with_extra_inputs(extra_inputs.pick(image)).run(mixed)
            without.append(part.scores(outputs))
    falls = in_float64(whole[:, None] - torch.cat(without).view(len(inputs), samples))
    return on_device(
        _error(predicted.to(falls), falls, scale=scale, relative=relative), whole.device
    )


def _error(predicted: Tensor, falls: Tensor, *, scale: bool, relative: bool) -> Tensor:
    if scale:
        square = predicted.square().mean(1, keepdim=True)
        product = (predicted * falls).mean(1, keepdim=True)
        predicted = torch.where(square > 0, product / square, 0.0) * predicted
    error = (predicted - falls).square().mean(1)
    if not relative:
        return error
    changes = falls.square().mean(1)
    return torch.where(changes > 0, error / changes, 0.0)


def random_boxes(
    size: Sequence[int], samples: int, generator: torch.Generator | None = None
) -> Tensor:
    """Return random boxes as masks (samples, *size); the first of several dimensions has length 1.

    Without a generator, the boxes are always the same. Of vectors, a box is a range of entries.
    """
    generator = generator or torch.Generator().manual_seed(0)
    dims = size[1:] if len(size) > 1 else size
    mask = torch.ones(samples, *size, dtype=torch.bool)
    smallest, largest = BOX_SIDES
    for dim, length in enumerate(dims, start=len(size) - len(dims) + 1):
        drawn = torch.rand(2, samples, generator=generator, device=generator.device).cpu()
        side = (smallest + (largest - smallest) * drawn[0]).mul(length).round().clamp(min=1)
        first = (drawn[1] * (length - side + 1)).floor()
        shape = [samples] + [1] * len(size)
        shape[dim] = length
        place = torch.arange(length)
        inside = (place >= first[:, None]) & (place < (first + side)[:, None])
        mask = mask & inside.view(shape)
    return mask


@dataclass(frozen=True)
class Confidence:
    """How a target's probability changes if only what its map shows is left; all are (images,).

    Attributes:
        probability: The probability of the whole image.
        probability_of_shown: The probability of what the map shows.
    """

    probability: Tensor
    probability_of_shown: Tensor

    @property
    def drop(self) -> Tensor:
        """The share of the probability that is lost; its mean is the average drop."""
        lost = (self.probability - self.probability_of_shown).clamp(min=0)
        return torch.where(self.probability > 0, lost / self.probability, 0.0)

    @property
    def gain(self) -> Tensor:
        """The share of what was missing from certainty that is gained."""
        missing = 1 - self.probability
        won = (self.probability_of_shown - self.probability).clamp(min=0)
        return torch.where(missing > 0, won / missing, 0.0)

    @property
    def increase(self) -> Tensor:
        """1 if the probability rises, else 0; its mean is the "increase in confidence"."""
        return (self.probability_of_shown > self.probability).to(self.probability)


@full_precision()
@torch.no_grad()
def confidence(
    model: Model,
    inputs: Tensor,
    target: Target,
    attribution: Tensor,
    *,
    substrate: AutoSubstrate = "zero",
    activation: Activation = "softmax",
    output: Output = None,
    additional_forward_args: Any = None,
) -> Confidence:
    """Multiply each image by its map's positive part, and return both probabilities.

    Args:
        model: The model that the maps explain.
        inputs: Images (images, channels, height, width), signals, volumes or vectors.
        target: One target for each image, or one for all, as for `attribute`.
        attribution: A map for each image, shaped like the inputs or with one channel.
        substrate: What the image fades to where the map is 0: "zero" (of normalised images, the
            mean colour), another name, or a tensor. A function gets a mask that is all true.
        activation: Turns outputs into probabilities, as for `insertion`.
        output: Which of the model's outputs is scored, as for the methods.
        additional_forward_args: The model's other inputs, as for the methods.

    Returns:
        The probabilities, from which average drop, gain and increase follow.

    Raises:
        InputError: If an option is out of range, or maps or substrate do not fit the images.
        TargetError: If the target does not fit the model or the images.
    """
    check_activation(activation)
    check_maps(attribution, inputs)
    shown = sum_of_channels(as_floating(attribution)).clamp(min=0)
    largest = shown.flatten(1).amax(1).view(-1, *(1,) * (shown.dim() - 1))
    shown = torch.where(largest > 0, shown / largest, 0.0).to(inputs)
    everything = torch.ones_like(shown, dtype=torch.bool)
    ground = fill(inputs, everything, resolve_substrate(substrate, inputs))
    runner = ModelRunner(model, output=output)
    runner = runner.with_extra_inputs(ExtraInputs.of(additional_forward_args, images=len(inputs)))
    probabilities = runner.activation(activation)
    with evaluating(runner.model):
        inputs, outputs, rows = runner.target_rows(inputs, target, activation=activation)
        check_one_target_each(rows, inputs)
        whole = rows.scores(outputs, probabilities)
        left = runner.run(shown * inputs + (1 - shown) * ground)
        return Confidence(whole, rows.scores(left, probabilities))
