"""The insertion metric (IM): how soon a blurred image is recognised as pixels go in.

    IM = (p₀/2 + p₁ + … + p_{n−1} + p_n/2) / n

where p_k is the probability of the target once k/n of the pixels are in. All channels of a pixel go
in together, ordered by their sum, the strongest first. Of equal pixels the one further up, then
further left, goes first, so a score depends on neither batch nor device.

    >>> insertion(model, images, 3, torch.randn(images.shape)).shape
    torch.Size([1])

Petsiuk, Das and Saenko, "RISE", BMVC 2018; the settings are those of its evaluation.
"""

from collections.abc import Callable, Mapping
from typing import Literal, TypedDict, Unpack

import torch
from torch import Tensor, nn

from dmbp.decompose.reference import Reference, reference_for
from dmbp.errors import InputError
from dmbp.linear.targets import Target, read_target
from dmbp.names import known

Activation = Literal["softmax", "sigmoid"] | Callable[[Tensor], Tensor]

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda outputs: outputs.softmax(1),
    "sigmoid": torch.sigmoid,
}

STEPS = 28
"""8 · 224 pixels a step at 224 × 224, as in RISE's batch evaluation."""


class CurveOptions(TypedDict, total=False):
    """How a curve is made.

    `steps` (28) pixels' portions go into `substrate` ("blur"; None for zero, or a tensor), outputs
    become probabilities by `activation` ("softmax", "sigmoid" or a function of (batch, classes)),
    and at most `internal_batch_size` (64) images are run together.
    """

    steps: int
    substrate: Reference
    activation: Activation
    internal_batch_size: int


def insertion(
    model: nn.Module,
    inputs: Tensor,
    target: Target,
    attribution: Tensor,
    **options: Unpack[CurveOptions],
) -> Tensor:
    """The insertion score of every image, (images,); higher is better."""
    return area(insertion_curve(model, inputs, target, attribution, **options))


@torch.no_grad()
def insertion_curve(
    model: nn.Module,
    inputs: Tensor,
    target: Target,
    attribution: Tensor,
    **options: Unpack[CurveOptions],
) -> Tensor:
    """The target's probability after each step, (images, steps + 1).

    `attribution` is shaped like the inputs, or has one channel.
    """
    steps = options.get("steps", STEPS)
    internal_batch_size = options.get("internal_batch_size", 64)
    probabilities = _activation(options.get("activation", "softmax"))
    if steps < 1 or internal_batch_size < 1:
        raise InputError("steps and internal_batch_size must be 1 or more")
    rank = pixel_ranks(attribution, inputs)
    weights = read_target(target, outputs=model(inputs)).weights(inputs)
    if len(weights) != len(inputs):
        raise InputError(f"{len(weights)} targets were given for {len(inputs)} images")
    start = reference_for(inputs, options.get("substrate", "blur"))
    jobs = [(image, step) for image in range(len(inputs)) for step in range(steps + 1)]
    curve = inputs.new_empty(len(jobs))
    for first in range(0, len(jobs), internal_batch_size):
        batch = jobs[first : first + internal_batch_size]
        image = torch.tensor([job[0] for job in batch], device=inputs.device)
        step = torch.tensor([job[1] for job in batch], device=inputs.device)
        mixed = inserted(inputs[image], start[image], rank[image], step / steps)
        scores = probabilities(model(mixed)) * weights[image]
        curve[first : first + len(batch)] = scores.sum(1)
    return curve.view(len(inputs), steps + 1)


def _activation(activation: Activation) -> Callable[[Tensor], Tensor]:
    if not isinstance(activation, str):
        return activation
    known("activation", activation, ACTIVATIONS)
    return ACTIVATIONS[activation]


def inserted(inputs: Tensor, substrate: Tensor, rank: Tensor, fraction: Tensor) -> Tensor:
    """Each image's strongest `fraction` of pixels, in its substrate."""
    count = torch.round(fraction.to(torch.float64) * rank[0].numel())
    return torch.where(rank < count.view(-1, 1, 1, 1), inputs, substrate)


def pixel_ranks(attribution: Tensor, inputs: Tensor) -> Tensor:
    """Each pixel's place in the order of insertion, (images, 1, height, width)."""
    spatial = inputs.shape[2:]
    if attribution.shape[0] != inputs.shape[0] or attribution.shape[2:] != spatial:
        raise InputError(
            f"an attribution of shape {tuple(attribution.shape)} does not fit inputs of shape "
            f"{tuple(inputs.shape)}"
        )
    if not torch.isfinite(attribution).all():
        raise InputError("the attribution contains NaN or infinity, so its pixels have no order")
    pixels = attribution.sum(1).flatten(1)
    order = pixels.argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order)
    rank.scatter_(1, order, torch.arange(order.shape[1], device=order.device).expand_as(order))
    return rank.view(len(inputs), 1, *spatial)


def area(curve: Tensor) -> Tensor:
    """The area under curves (images, steps + 1), both ends counted half."""
    ends = (curve[:, 0] + curve[:, -1]) / 2
    return (curve.sum(1) - ends) / (curve.shape[1] - 1)
