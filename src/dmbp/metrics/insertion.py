"""Insertion and deletion: how a class's probability changes as pixels are replaced in order.

    area = (p₀/2 + p₁ + … + p_{n−1} + p_n/2) / n

p_k is the probability once k/n of the pixels are replaced, and the area under this curve is the
score. Insertion begins with a blurred image and inserts the strongest pixels first; deletion begins
with the image and removes them first. RISE itself deletes to grey: `substrate="zero"`.
Complementary insertion inserts the pixels first that speak most against the target, and scores the
image's *other* classes.

All channels of a pixel are replaced together, as are those of a signal's moment or a volume's
voxel; the entries of a vector (batch, feature) are its pixels. Pixels are ordered by the sum over
their channels, the strongest first; equal pixels from top to bottom, then from left to right, so
that scores depend on neither the batch nor the device. A map that contains NaN or infinity is
refused.

    >>> maps = torch.randn(images.shape)
    >>> insertion(model, images, 3, maps).shape, deletion(model, images, 3, maps).shape
    (torch.Size([1]), torch.Size([1]))
    >>> complementary_insertion(model, images, [[1, 4]], maps).shape
    torch.Size([1])

Petsiuk, Das and Saenko, "RISE", BMVC 2018, whose evaluation's settings are the defaults.
Complementary insertion: Ruiz, Agudo and Moreno-Noguer, ICCV 2021, Section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from dmbp.devices import in_float64, widest_dtype
from dmbp.errors import InputError, TargetError, require_known
from dmbp.linear import Target, TargetRows
from dmbp.linear.model.runner import ModelRunner
from dmbp.linear.model.signature import ExtraInputs, Output
from dmbp.linear.model.wrappers import Model, evaluating
from dmbp.metrics.substrates import AutoSubstrate, fill, pick_images, resolve_substrate
from dmbp.precision import full_precision
from dmbp.probabilities import Activation, check_activation

STEPS = 28
"""8 · 224 pixels per step at 224 × 224, as in RISE's batch evaluation."""


class CurveOptions(TypedDict, total=False):
    """Options of all insertion and deletion scores and curves.

    Args:
        steps: The number of steps in which the pixels are replaced (28 by default).
        substrate: What the image shows in place of missing pixels: "blur" (the default), "zero"
            (the default for vectors, which have no surroundings), "mean", "noise", "linear" (noisy
            linear imputation), a tensor, or a function of the images and a mask that is true where
            pixels are missing.
        activation: Turns outputs into probabilities: "softmax" (the default), "sigmoid", "none" or
            a function of outputs (images, classes). Softmax treats a single output as sigmoid does.
        internal_batch_size: The most images that the model is run on at once (64 by default), which
            changes results by rounding alone.
        output: Which of the model's outputs is scored: a name, a position or a function of what the
            model returns. None finds it automatically.
        additional_forward_args: The model's other inputs, as for the methods.
        run: Returns the model's outputs for images, (images, classes), if there is a faster way
            than the model itself, such as `dmbp.engine.ForwardPasses` finds.
    """

    steps: int
    substrate: AutoSubstrate
    activation: Activation
    internal_batch_size: int
    output: Output
    additional_forward_args: Any
    run: Callable[[Tensor], Tensor] | None


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
    at: Sequence[float] | None = None,
) -> Tensor:
    """Return the target's probability after each step, (images, steps + 1).

    Pixels are inserted into the substrate, or deleted from the image if `removing`. The fractions
    of pixels may also be given, as `at`.
    """
    for name in options:
        require_known("option", name, CurveOptions.__annotations__)
    steps = options.get("steps", STEPS)
    batch = options.get("internal_batch_size", 64)
    check_activation(options.get("activation", "softmax"))
    require_count("steps", steps)
    require_count("internal_batch_size", batch)
    rank = pixel_ranks(attribution, inputs).to(inputs.device)
    runner = ModelRunner(model, output=options.get("output"))
    activation = runner.activation(options.get("activation", "softmax"))
    extra_inputs = ExtraInputs.of(options.get("additional_forward_args"), images=len(inputs))
    with evaluating(runner.model):
        inputs, _, rows = runner.with_extra_inputs(extra_inputs).target_rows(
            inputs, target, activation=options.get("activation", "softmax")
        )
        check_one_target_each(rows, inputs)
        substrate = resolve_substrate(options.get("substrate", "auto"), inputs)
        points = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
        points = points if at is None else torch.tensor(at, dtype=torch.float64)
        repeated = rows.pick([k for k in range(len(rows)) for _ in points])
        fractions = points.repeat(len(inputs))
        scores: list[Tensor] = []
        for indices in repeated.batches(batch):
            part = repeated.pick(indices)
            image = list(part.image)
            strongest = rank_below(rank[image], fractions[indices])
            missing = strongest if removing else ~strongest
            mixed = fill(inputs[image], missing, pick_images(substrate, image))
            own = runner.with_extra_inputs(extra_inputs.pick(image)).run
            outputs = (options.get("run") or own)(mixed)
            scores.append(part.scores(outputs, activation))
    return torch.cat(scores).view(len(inputs), len(points))


def require_count(name: str, value: int) -> None:
    """Raise an `InputError` unless an option is a whole number of 1 or more."""
    if not isinstance(value, int) or value < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"{name} must be a whole number of 1 or more, not {value!r}")


def check_one_target_each(rows: TargetRows, inputs: Tensor) -> None:
    """Raise an `InputError` if an image has several targets."""
    if len(rows) != len(inputs):
        raise InputError(f"{len(rows)} targets were given for {len(inputs)} images")


def replace_pixels(front: Tensor, back: Tensor, rank: Tensor, fraction: Tensor) -> Tensor:
    """Take the strongest `fraction` of each image's pixels from `front` and the rest from `back`.

    Args:
        front: Images (images, channels, height, width).
        back: Images of the same shape.
        rank: The rank of each pixel, as `pixel_ranks` returns it.
        fraction: A number from 0 to 1 for each image, (images,).

    Returns:
        The mixed images.
    """
    return torch.where(rank_below(rank, fraction), front, back)


def rank_below(rank: Tensor, fraction: Tensor) -> Tensor:
    """Return whether each pixel is among the strongest `fraction`, (images,), of its image's."""
    count = torch.round(in_float64(fraction) * rank[0].numel()).long().to(rank.device)
    return rank < count.view(-1, *(1,) * (rank.dim() - 1))


def pixel_ranks(attribution: Tensor, inputs: Tensor) -> Tensor:
    """Rank each image's pixels by their attribution, the strongest first.

    Args:
        attribution: A map for each image, shaped like the inputs or with one channel.
        inputs: Images (images, channels, height, width).

    Returns:
        The rank of each pixel, from 0 for the strongest, (images, 1, *size), or (vectors, entries).

    Raises:
        InputError: If the maps do not fit the images, or contain NaN or infinity.
    """
    check_maps(attribution, inputs)
    summed = sum_of_channels(attribution)
    pixels = summed.flatten(1)
    order = pixels.argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order)
    rank.scatter_(1, order, torch.arange(order.shape[1], device=order.device).expand_as(order))
    return rank.view_as(summed)


def sum_of_channels(attribution: Tensor) -> Tensor:
    """Return the sum over channels, which become one; a vector has none."""
    return attribution.sum(1, keepdim=True) if attribution.dim() > 2 else attribution


def as_floating(attribution: Tensor) -> Tensor:
    """Return a map that has opposites: unsigned integers and truth values have none."""
    if attribution.is_floating_point():
        return attribution
    return attribution.to(widest_dtype(attribution.device))


def check_maps(attribution: Tensor, inputs: Tensor) -> None:
    """Raise an `InputError` if the maps do not fit the images, or contain NaN or infinity."""
    for name, value in (("inputs", inputs), ("attribution", attribution)):
        if not isinstance(value, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"{name} must be a tensor, not {type(value).__name__}")
    if inputs.dim() < 2:
        raise InputError(
            "pixels can be ordered in images (batch, channel, height, width), signals (batch, "
            "channel, length), volumes or vectors (batch, feature), not in inputs of shape "
            f"{tuple(inputs.shape)}"
        )
    one_channel = (len(inputs), 1, *inputs.shape[2:])
    fitting = [inputs.shape, one_channel] if inputs.dim() > 2 else [inputs.shape]
    if tuple(attribution.shape) not in [tuple(shape) for shape in fitting]:
        raise InputError(
            f"attribution of shape {tuple(attribution.shape)} does not fit inputs of shape "
            f"{tuple(inputs.shape)}"
        )
    if not torch.isfinite(attribution).all():
        raise InputError("attribution contains NaN or infinity, so its pixels have no order")


def area(curve: Tensor) -> Tensor:
    """Return the area under each curve by the trapezoidal rule.

    Args:
        curve: Probabilities (images, steps + 1).

    Returns:
        The areas (images,).
    """
    ends = (curve[:, 0] + curve[:, -1]) / 2
    return (curve.sum(1) - ends) / (curve.shape[1] - 1)


def insertion(
    model: Model,
    inputs: Tensor,
    target: Target,
    attribution: Tensor,
    **options: Unpack[CurveOptions],
) -> Tensor:
    """Return the area under each image's insertion curve; higher is better.

    Args:
        model: The model that the maps explain.
        inputs: Images (images, channels, height, width), signals, volumes or vectors.
        target: One target for each image, or one for all, as for `attribute`. A function of the
            outputs receives the outputs, not probabilities.
        attribution: A map for each image, shaped like the inputs or with one channel.
        **options: See `CurveOptions`.

    Returns:
        The scores (images,).

    Raises:
        InputError: If an option is unknown or out of range, or the maps do not fit the images.
        TargetError: If the target does not fit the model or the images.
    """
    return area(insertion_curve(model, inputs, target, attribution, **options))


def insertion_curve(
    model: Model,
    inputs: Tensor,
    target: Target,
    attribution: Tensor,
    **options: Unpack[CurveOptions],
) -> Tensor:
    """Return the target's probability as the strongest pixels are inserted into the substrate.

    Args:
        model: The model that the maps explain.
        inputs: Images (images, channels, height, width), signals, volumes or vectors.
        target: One target for each image, or one for all, as for `attribute`. A function of the
            outputs receives the outputs, not probabilities.
        attribution: A map for each image, shaped like the inputs or with one channel.
        **options: See `CurveOptions`.

    Returns:
        The probability after each step, (images, steps + 1).

    Raises:
        InputError: If an option is unknown or out of range, or the maps do not fit the images.
        TargetError: If the target does not fit the model or the images.
    """
    return probability_curve(model, inputs, target, attribution, removing=False, options=options)


def deletion(
    model: Model,
    inputs: Tensor,
    target: Target,
    attribution: Tensor,
    **options: Unpack[CurveOptions],
) -> Tensor:
    """Return the area under each image's deletion curve; lower is better.

    Args:
        model: The model that the maps explain.
        inputs: Images (images, channels, height, width), signals, volumes or vectors.
        target: One target for each image, or one for all, as for `attribute`. A function of the
            outputs receives the outputs, not probabilities.
        attribution: A map for each image, shaped like the inputs or with one channel.
        **options: See `CurveOptions`.

    Returns:
        The scores (images,).

    Raises:
        InputError: If an option is unknown or out of range, or the maps do not fit the images.
        TargetError: If the target does not fit the model or the images.
    """
    return area(deletion_curve(model, inputs, target, attribution, **options))


def deletion_curve(
    model: Model,
    inputs: Tensor,
    target: Target,
    attribution: Tensor,
    **options: Unpack[CurveOptions],
) -> Tensor:
    """Return the target's probability as the strongest pixels are deleted from the image.

    Args:
        model: The model that the maps explain.
        inputs: Images (images, channels, height, width), signals, volumes or vectors.
        target: One target for each image, or one for all, as for `attribute`. A function of the
            outputs receives the outputs, not probabilities.
        attribution: A map for each image, shaped like the inputs or with one channel.
        **options: See `CurveOptions`.

    Returns:
        The probability after each step, (images, steps + 1).

    Raises:
        InputError: If an option is unknown or out of range, or the maps do not fit the images.
        TargetError: If the target does not fit the model or the images.
    """
    return probability_curve(model, inputs, target, attribution, removing=True, options=options)


def complementary_insertion(
    model: Model,
    inputs: Tensor,
    others: Sequence[Sequence[int]],
    attribution: Tensor,
    **options: Unpack[CurveOptions],
) -> Tensor:
    """Return the mean area under the other classes' insertion curves; higher is better.

    The pixels that speak most against the explained class are inserted first.

    Args:
        model: The model that the maps explain.
        inputs: Images (images, channels, height, width), signals, volumes or vectors.
        others: For each image, the classes it shows besides the one that its map explains.
        attribution: A map for each image, shaped like the inputs or with one channel.
        **options: See `CurveOptions`.

    Returns:
        The scores (images,).

    Raises:
        InputError: If an option is unknown or out of range, or the maps do not fit the images.
        TargetError: If an image has no other class, or a class does not exist.
    """
    try:
        distinct = [sorted({int(index) for index in classes}) for classes in others]
    except (TypeError, ValueError) as error:
        raise TargetError(
            "others must be a list of class indices for every image, such as [[3], [1, 4]]"
        ) from error
    if not all(distinct):
        raise TargetError(
            "complementary insertion needs at least one other class for every image; leave out "
            "images that show only one class"
        )
    signed = as_floating(attribution)
    # The mean of the areas is the area under the mean curve.
    mean = [{index: 1 / len(classes) for index in classes} for classes in distinct]
    return area(probability_curve(model, inputs, mean, -signed, removing=False, options=options))
