"""How a class's probability changes while an image's pixels are put in or taken out, in order.

    area = (p₀/2 + p₁ + … + p_{n−1} + p_n/2) / n

p_k is the probability once k/n of the pixels are replaced. All channels of a pixel go together,
ordered by their sum, the strongest first. Of equal pixels the one further up, then further left,
goes first, so a score depends on neither batch nor device, and a map that is the same everywhere is
scored as that order. A map with NaN has no order and is refused.

Petsiuk, Das and Saenko, "RISE", BMVC 2018; the settings are those of its evaluation.

The insertion metric (IM): how soon a blurred image is recognised as its strongest pixels go in.

    >>> insertion(model, images, 3, torch.randn(images.shape)).shape
    torch.Size([1])

Petsiuk, Das and Saenko, "RISE", BMVC 2018; `curve.py` says how the curve is made.

The deletion metric: how soon an image is no longer recognised as its strongest pixels go.

    >>> deletion(model, images, 3, torch.randn(images.shape)).shape
    torch.Size([1])

Petsiuk, Das and Saenko, "RISE", BMVC 2018. RISE itself deletes to grey: `substrate="zero"`.

Complementary insertion (cIM): whether what speaks against a class shows the other ones.

The pixels least in favour of the target go in first; the score is the mean over the image's *other*
classes of the area under their curves.

    >>> complementary_insertion(model, images, [[1, 4]], torch.randn(images.shape)).shape
    torch.Size([1])

Ruiz, Agudo and Moreno-Noguer, ICCV 2021, Section 4.
"""

from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from dmbp.baseline import Baseline, baseline_for
from dmbp.errors import InputError, TargetError, require_known
from dmbp.linear import Linearizer, Target
from dmbp.linear.model.signature import ExtraInputs, Output
from dmbp.linear.model.wrappers import Model, evaluating
from dmbp.precision import full_precision
from dmbp.probabilities import Activation, activation_function

STEPS = 28
"""8 · 224 pixels a step at 224 × 224, as in RISE's batch evaluation."""


class CurveOptions(TypedDict, total=False):
    """How a curve is made.

    Pixels are replaced in `steps` (28) portions; where they are missing the image shows `substrate`
    ("blur", as in RISE; "zero", "mean" or a tensor). Outputs become probabilities by `activation`
    ("softmax", "sigmoid" or a function of (images, classes)), and at most `internal_batch_size`
    (64) images are run together, which changes no score. A single output is a yes or no: softmax
    reads it as sigmoid does. A target that is a function is handed the outputs, not probabilities.
    `output` and `additional_forward_args` are as the methods take them: which of several things the
    model returns is scored, and what it is given beside the images.
    """

    steps: int
    substrate: Baseline
    activation: Activation
    internal_batch_size: int
    output: Output
    additional_forward_args: Any


@full_precision()
@torch.no_grad()
def probability_curve(
    model: Model,
    inputs: Tensor,
    target: Target,
    attribution: Tensor,
    *,
    removing: bool,
    options: CurveOptions,
) -> Tensor:
    """The target's probability after each step, (images, steps + 1).

    Pixels are put into the substrate, or taken out of the image where `removing`.
    """
    for name in options:
        require_known("option", name, CurveOptions.__annotations__)
    steps = options.get("steps", STEPS)
    batch = options.get("internal_batch_size", 64)
    activation = activation_function(options.get("activation", "softmax"))
    for name, value in (("steps", steps), ("internal_batch_size", batch)):
        if not isinstance(value, int) or value < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"{name} must be a whole number from 1, not {value!r}")
    rank = pixel_ranks(attribution, inputs)
    linearizer = Linearizer(model, output=options.get("output"))
    held = ExtraInputs.of(options.get("additional_forward_args"), images=len(inputs))
    with evaluating(linearizer.model):
        inputs, _, rows = linearizer.holding(held).rows(inputs, target=target)
        if len(rows) != len(inputs):
            raise InputError(f"{len(rows)} targets were given for {len(inputs)} images")
        substrate = baseline_for(inputs, options.get("substrate", "blur"))
        front, back = (substrate, inputs) if removing else (inputs, substrate)
        jobs = rows.pick([k for k in range(len(rows)) for _ in range(steps + 1)])
        fractions = torch.linspace(0, 1, steps + 1, dtype=torch.float64).repeat(len(inputs))
        scores: list[Tensor] = []
        for indices in jobs.batches(batch):
            part = jobs.pick(indices)
            image = list(part.image)
            fraction = fractions[indices].to(inputs.device)
            mixed = replace_pixels(front[image], back[image], rank[image], fraction)
            outputs = linearizer.holding(held.pick(image)).run(mixed)
            scores.append(part.scores(outputs, activation))
    return torch.cat(scores).view(len(inputs), steps + 1)


def replace_pixels(front: Tensor, back: Tensor, rank: Tensor, fraction: Tensor) -> Tensor:
    """The strongest `fraction` of each image's pixels from `front`, the rest from `back`."""
    count = torch.round(fraction.to(torch.float64) * rank[0].numel())
    return torch.where(rank < count.view(-1, 1, 1, 1), front, back)


def pixel_ranks(attribution: Tensor, inputs: Tensor) -> Tensor:
    """Each pixel's place in the order, (images, 1, height, width)."""
    for name, given in (("inputs", inputs), ("an attribution", attribution)):
        if not isinstance(given, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"{name} must be a tensor, not {type(given).__name__}")
    spatial = inputs.shape[2:]
    if inputs.dim() != 4:
        raise InputError(
            "pixels have an order in images of shape (batch, channel, height, width), not "
            f"{tuple(inputs.shape)}"
        )
    fitting = attribution.dim() == 4 and attribution.shape[1] in (1, inputs.shape[1])
    if not fitting or (len(attribution), attribution.shape[2:]) != (len(inputs), spatial):
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


def insertion(
    model: Model,
    inputs: Tensor,
    target: Target,
    attribution: Tensor,
    **options: Unpack[CurveOptions],
) -> Tensor:
    """The insertion score of every image, (images,); higher is better."""
    return area(insertion_curve(model, inputs, target, attribution, **options))


def insertion_curve(
    model: Model,
    inputs: Tensor,
    target: Target,
    attribution: Tensor,
    **options: Unpack[CurveOptions],
) -> Tensor:
    """The target's probability after each step, (images, steps + 1).

    `attribution` is shaped like the inputs, or has one channel.
    """
    return probability_curve(model, inputs, target, attribution, removing=False, options=options)


def deletion(
    model: Model,
    inputs: Tensor,
    target: Target,
    attribution: Tensor,
    **options: Unpack[CurveOptions],
) -> Tensor:
    """The deletion score of every image, (images,); lower is better."""
    return area(deletion_curve(model, inputs, target, attribution, **options))


def deletion_curve(
    model: Model,
    inputs: Tensor,
    target: Target,
    attribution: Tensor,
    **options: Unpack[CurveOptions],
) -> Tensor:
    """The target's probability after each step, (images, steps + 1)."""
    return probability_curve(model, inputs, target, attribution, removing=True, options=options)


def complementary_insertion(
    model: Model,
    inputs: Tensor,
    others: Sequence[Sequence[int]],
    attribution: Tensor,
    **options: Unpack[CurveOptions],
) -> Tensor:
    """The complementary score of every image, (images,); higher is better.

    `others` lists for every image the classes it shows beside the one that `attribution` is about.
    """
    try:
        distinct = [sorted({int(index) for index in classes}) for classes in others]
    except (TypeError, ValueError) as error:
        raise TargetError(
            "the other classes are a list of class indices for every image, such as [[3], [1, 4]]"
        ) from error
    if not all(distinct):
        raise TargetError(
            "complementary insertion needs at least one other class for every image; leave out "
            "images that show one class only"
        )
    signed = attribution if attribution.is_floating_point() else attribution.double()
    # The mean of areas is the area of the mean.
    mean = [{index: 1 / len(classes) for index in classes} for classes in distinct]
    return area(probability_curve(model, inputs, mean, -signed, removing=False, options=options))
