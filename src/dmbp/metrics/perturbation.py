"""MoRF, LeRF and their gap, and ROAD: what removing the most and the least relevant pixels does.

    MoRF    the mean probability as the most relevant pixels are removed first: lower is better
    LeRF    the same as the least relevant are removed first: higher is better
    gap     LeRF − MoRF, from −1 to 1: higher is better, and 0 is what a random order has

    >>> found = perturbation(model, images, 3, torch.randn(images.shape))
    >>> found.gap.shape, found.morf_curve.shape
    (torch.Size([1]), torch.Size([1, 29]))

MoRF is deletion by another name, and LeRF is insertion read from its end: what is left when the
least relevant pixels are removed are the most relevant ones. In a gap, what the substrate itself
does to the network is counted twice with opposite signs.

`road` removes by noisy linear imputation (`imputation.py`), which hides the outline of what was
removed, at the percentages of the paper. The score of its authors is a dataset's accuracy at each
percentage; ours is each image's probability. Half the gap of `road` is pytorch-grad-cam's
`ROADCombined`, at equal percentages.

Samek, Binder, Montavon, Lapuschkin and Müller, "Evaluating the Visualization of What a Deep Neural
Network Has Learned", IEEE TNNLS 2017 (MoRF, LeRF); Rong et al., ICML 2022 (ROAD).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

from torch import Tensor

from dmbp.errors import InputError
from dmbp.linear import Target
from dmbp.linear.model.wrappers import Model
from dmbp.metric_table import ROAD_PERCENTAGES
from dmbp.metrics.insertion import (
    CurveOptions,
    area,
    as_floating,
    deletion_curve,
    insertion_curve,
    probability_curve,
)


@dataclass(frozen=True)
class Perturbation:
    """Scores of removing pixels in both orders; all tensors are (images,) or (images, points).

    Attributes:
        morf: The mean probability, the most relevant pixels removed first.
        lerf: The mean probability, the least relevant pixels removed first.
        morf_curve: The probabilities behind `morf`.
        lerf_curve: The probabilities behind `lerf`.
    """

    morf: Tensor
    lerf: Tensor
    morf_curve: Tensor
    lerf_curve: Tensor

    @property
    def gap(self) -> Tensor:
        """LeRF − MoRF; higher is better."""
        return self.lerf - self.morf


def perturbation(
    model: Model,
    inputs: Tensor,
    target: Target,
    attribution: Tensor,
    **options: Unpack[CurveOptions],
) -> Perturbation:
    """Remove pixels step by step, the most and the least relevant first.

    Equal pixels are removed from top to bottom in MoRF, and the other way round in LeRF.

    Args:
        model: The model that the maps explain.
        inputs: Images (images, channels, height, width), signals, volumes or vectors.
        target: One target for each image, or one for all, as for `attribute`. A function of the
            outputs receives the outputs, not probabilities.
        attribution: A map for each image, shaped like the inputs or with one channel.
        **options: See `CurveOptions`.

    Returns:
        MoRF, LeRF and their curves, whose areas are taken by the trapezoidal rule.

    Raises:
        InputError: If an option is unknown or out of range, or the maps do not fit the images.
        TargetError: If the target does not fit the model or the images.
    """
    morf = deletion_curve(model, inputs, target, attribution, **options)
    lerf = insertion_curve(model, inputs, target, attribution, **options).flip(1)
    return Perturbation(area(morf), area(lerf), morf, lerf)


def road(
    model: Model,
    inputs: Tensor,
    target: Target,
    attribution: Tensor,
    *,
    percentages: Sequence[float] = ROAD_PERCENTAGES,
    **options: Unpack[CurveOptions],
) -> Perturbation:
    """Remove the most and the least relevant pixels by noisy linear imputation.

    Args:
        model: The model that the maps explain.
        inputs: Images (images, channels, height, width).
        target: One target for each image, or one for all, as for `attribute`.
        attribution: A map for each image, shaped like the inputs or with one channel.
        percentages: The percentages of pixels that are removed; scores are means over them.
        **options: See `CurveOptions`; the substrate is "linear" unless given, and there are no
            `steps`.

    Returns:
        MoRF, LeRF and their curves over the percentages.

    Raises:
        InputError: If an option is unknown or out of range, or the maps do not fit the images.
        TargetError: If the target does not fit the model or the images.
    """
    if not percentages or not all(0 <= percentage <= 100 for percentage in percentages):
        raise InputError(f"percentages must be numbers from 0 to 100, not {percentages!r}")
    at = [percentage / 100 for percentage in percentages]
    used: CurveOptions = {"substrate": "linear", **options}
    morf, lerf = (
        probability_curve(model, inputs, target, ordered, removing=True, options=used, at=at)
        for ordered in (attribution, -as_floating(attribution))
    )
    return Perturbation(morf.mean(1), lerf.mean(1), morf, lerf)
