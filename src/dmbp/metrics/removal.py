"""Removal: how a class's score changes without the strongest pixels of each sign.

A map says that its positive pixels (red in pictures) raise the score and that its negative pixels
(blue) lower it. Removal lets the model check both: it replaces the strongest tenth of the pixels
with one sign by a substrate and compares the scores.

    red true       the score falls without the strongest positive pixels
    blue claims    negative pixels hold more than 5 % of the map's absolute mass
    blue true      the score rises without the strongest negative pixels; only maps that claim
                   blue have a value

    >>> checked = removal(model, images, 3, torch.randn(images.shape))
    >>> checked.score_without_positive.shape, checked.red_true.shape
    (torch.Size([1]), torch.Size([1]))

Channels of a pixel are added up first. Only pixels that have the sign are replaced: if fewer than a
tenth have it, all of these; if none has it, the score is that of the whole image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dmbp.decompose.tested import SHARE, strongest
from dmbp.devices import in_float64, on_device
from dmbp.errors import InputError
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
from dmbp.metrics.substrates import AutoSubstrate, Substrate, fill, resolve_substrate
from dmbp.precision import full_precision
from dmbp.probabilities import Activation, check_activation

CLAIM = 0.05
"""A map claims blue if its negative pixels hold more than this share of its absolute mass."""

__all__ = ["CLAIM", "SHARE", "Removal", "Substrate", "mass_share", "removal", "sign_mask"]


@dataclass(frozen=True)
class Removal:
    """Scores with and without the strongest pixels of each sign; all tensors are (images,).

    Attributes:
        score: The target's score for the whole image: an output, not a probability.
        probability: Its probability for the whole image.
        score_without_positive: Its score without the strongest positive pixels.
        probability_without_positive: Its probability without them.
        score_without_negative: Its score without the strongest negative pixels.
        probability_without_negative: Its probability without them.
        positive_share: The share of the map's absolute mass that positive pixels hold.
        negative_share: The share that negative pixels hold.
        positive_removed: The share of the image's pixels that were replaced as positive.
        negative_removed: The share that were replaced as negative.
    """

    score: Tensor
    probability: Tensor
    score_without_positive: Tensor
    probability_without_positive: Tensor
    score_without_negative: Tensor
    probability_without_negative: Tensor
    positive_share: Tensor
    negative_share: Tensor
    positive_removed: Tensor
    negative_removed: Tensor

    @property
    def red_true(self) -> Tensor:
        """1 where the score falls without the positive pixels, else 0; average with `mean`."""
        return in_float64(self.score_without_positive < self.score)

    @property
    def claims_blue(self) -> Tensor:
        """1 where negative pixels hold more than 5 % of the map's absolute mass, else 0."""
        return in_float64(self.negative_share > CLAIM)

    @property
    def blue_true(self) -> Tensor:
        """1 where the score rises without the negative pixels, else 0; average with `nanmean`.

        It is NaN for maps that do not claim blue.
        """
        rises = in_float64(self.score_without_negative > self.score)
        return torch.where(self.claims_blue > 0, rises, torch.nan)


@full_precision()
@torch.no_grad()
def removal(
    model: Model,
    inputs: Tensor,
    target: Target,
    attribution: Tensor,
    *,
    share: float | None = SHARE,
    substrate: AutoSubstrate = "auto",
    activation: Activation = "softmax",
    internal_batch_size: int = 64,
    output: Output = None,
    additional_forward_args: Any = None,
) -> Removal:
    """Replace the strongest pixels of each sign, and return how the target's score changes.

    Args:
        model: The model that the maps explain.
        inputs: Images (images, channels, height, width), signals, volumes or vectors.
        target: One target for each image, or one for all, as for `attribute`. The probability of a
            function of the outputs is its score.
        attribution: A map for each image, shaped like the inputs or with one channel.
        share: The share of all pixels to replace, at least one pixel, counted among those with the
            sign. None replaces every pixel with the sign.
        substrate: What replaces the pixels: "blur", "zero", "mean", "noise", "linear", a tensor, or
            a function of the inputs and a mask (images, 1, *size) that is True where pixels are
            removed. "auto" is "blur", or "zero" for vectors, which have no surroundings.
        activation: Turns outputs into probabilities: "softmax", "sigmoid", "none" or a function of
            outputs (images, classes).
        internal_batch_size: The most images that the model is run on at once.
        output: Which of the model's outputs is scored, as for the methods.
        additional_forward_args: The model's other inputs, as for the methods.

    Returns:
        The scores and probabilities with and without these pixels.

    Raises:
        InputError: If an option is out of range, or maps or substrate do not fit the images.
        TargetError: If the target does not fit the model or the images.
    """
    require_count("internal_batch_size", internal_batch_size)
    check_activation(activation)
    masks = [sign_mask(attribution, inputs, sign, share=share) for sign in (1, -1)]
    used = resolve_substrate(substrate, inputs)
    runner = ModelRunner(model, output=output)
    probabilities = runner.activation(activation)
    extra_inputs = ExtraInputs.of(additional_forward_args, images=len(inputs))
    with evaluating(runner.model):
        inputs, outputs, rows = runner.with_extra_inputs(extra_inputs).target_rows(
            inputs, target, activation=activation
        )
        check_one_target_each(rows, inputs)
        score, probability = rows.scores(outputs), rows.scores(outputs, probabilities)

        def without(mask: Tensor) -> tuple[Tensor, Tensor]:
            """Return scores and probabilities without the pixels in a mask."""
            # An image that loses no pixel keeps its score to the last bit.
            changed = mask.flatten(1).any(1).nonzero().flatten().tolist()
            if not changed:
                return score, probability
            mixed = fill(inputs, mask, used)
            scores, likely = score.clone(), probability.clone()
            for start in range(0, len(changed), internal_batch_size):
                image = changed[start : start + internal_batch_size]
                part = rows.pick(image)
                found = runner.with_extra_inputs(extra_inputs.pick(image)).run(mixed[image])
                scores[image] = part.scores(found)
                likely[image] = part.scores(found, probabilities)
            return scores, likely

        positive, negative = (without(mask.to(inputs.device)) for mask in masks)
    shares = [on_device(mass_share(attribution, sign), inputs.device) for sign in (1, -1)]
    removed = [on_device(in_float64(k.flatten(1)).mean(1), inputs.device) for k in masks]
    return Removal(score, probability, *positive, *negative, *shares, *removed)


def sign_mask(
    attribution: Tensor, inputs: Tensor, sign: int, *, share: float | None = SHARE
) -> Tensor:
    """Return where the strongest pixels with a sign are, (images, 1, *size), or like vectors.

    Args:
        attribution: A map for each image, shaped like the inputs or with one channel.
        inputs: Images (images, channels, height, width), signals, volumes or vectors.
        sign: 1 for positive pixels, −1 for negative ones.
        share: The share of all pixels to find; None finds every pixel with the sign.

    Returns:
        True for at most `share` of an image's pixels, but at least for one, all of which have the
        sign.

    Raises:
        InputError: If `share` is out of range, or the maps do not fit the images.
    """
    if share is not None and not (isinstance(share, int | float) and 0 < share <= 1):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"share must be above 0 and at most 1, or None for all, not {share!r}")
    check_maps(attribution, inputs)
    pixels = sign * sum_of_channels(_as_floating(attribution))
    return pixels > 0 if share is None else strongest(pixels, share)


def mass_share(attribution: Tensor, sign: int) -> Tensor:
    """Return the share of each map's absolute mass that pixels with a sign hold, (images,).

    It is 0 for a map of zeros.
    """
    pixels = in_float64(sum_of_channels(_as_floating(attribution)).flatten(1))
    mass = pixels.abs().sum(1)
    own = (sign * pixels).clamp(min=0).sum(1)
    return torch.where(mass > 0, own / mass, 0.0)


def _as_floating(attribution: Tensor) -> Tensor:
    """Return a map that has opposites: unsigned integers and truth values have none."""
    if not isinstance(attribution, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"attribution must be a tensor, not {type(attribution).__name__}")
    return as_floating(attribution)
