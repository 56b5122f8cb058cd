"""KernelSHAP: the Shapley values of the image's regions, estimated by weighted least squares.

    minimise  Σ_z k(|z|) (y(x_z) − y(x₀) − z · φ)²      over φ with Σ φ = y(x) − y(x₀)

A coalition z keeps some of M regions and replaces the others by the baseline x₀. Its weight is the
Shapley kernel k(s) = (M − 1) / (C(M, s) s (M − s)). If all coalitions fit into `samples`, φ are the
Shapley values exactly. Otherwise the smallest and the largest coalitions are all taken, as many
sizes as fit, and others are drawn by k in pairs of complements, which lowers the variance. A
region's value is spread evenly over its pixels, so attributions add up to y(x) − y(x₀).

    >>> maps = KernelSHAP(model, count=4, samples=14).attribute(images, target=3)
    >>> change = model(images)[0, 3] - model(0 * images)[0, 3]
    >>> torch.allclose(maps.sum(), change, atol=1e-5)
    True

Captum's KernelShap runs one coalition of one image after the other unless it is told otherwise, and
solves by scikit-learn with a large weight in place of the constraint. Here coalitions are run in
batches, an image with several targets once, and the constraint holds exactly.

Lundberg and Lee, "A Unified Approach to Interpreting Model Predictions", NeurIPS 2017. Covert and
Lee, "Improving KernelSHAP", AISTATS 2021 (pairs).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from dmbp.attribution.base import Method
from dmbp.attribution.occlusion import as_map
from dmbp.attribution.passes import rows_by_image, run_of
from dmbp.baseline import Baseline, baseline_for
from dmbp.decompose.windows import pixel_size
from dmbp.devices import in_float64
from dmbp.engine import ForwardPasses
from dmbp.errors import InputError, require_known
from dmbp.linear import Question
from dmbp.linear.model.signature import Output
from dmbp.linear.model.wrappers import Model
from dmbp.validation import check_range

MAX_REGIONS, MAX_SAMPLES = 1024, 100_000

NAMED_REGIONS = ("grid", "segments")

COMPACTNESS = 10.0
"""SLIC's weight of nearness against likeness in colour; the default of scikit-image."""


class KernelSHAP(Method):
    """Shapley values of regions, estimated from random coalitions of them.

    Args:
        model: The model to explain.
        regions: "grid" (equal cells), "segments" (SLIC's, which need scikit-image), or a tensor of
            whole numbers that label regions, (*size) or (images, *size).
        count: About how many regions to make; vectors with fewer entries have a region for each.
        samples: How many coalitions to run.
        reference: What replaces regions: None or "zero", "blur", "mean" or a tensor. `baselines`
            passed to `attribute` take its place.
        generator: Draws a new seed at every call; without one, all calls use the same numbers.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.

    Raises:
        InputError: If the regions are unknown or do not fit, or a number is out of range.
    """

    takes_baselines = True
    runs_many_points = True
    run_setting = "samples"

    def __init__(
        self,
        model: Model,
        *,
        regions: str | Tensor = "grid",
        count: int = 49,
        samples: int = 1024,
        reference: Baseline = None,
        generator: torch.Generator | None = None,
        output: Output = None,
    ) -> None:
        super().__init__(model, generator=generator, output=output)
        self.check_settings(regions=regions, count=count, samples=samples)
        self.regions: str | Tensor = regions
        self.count, self.samples = count, samples
        self.reference: Baseline = reference
        self._passes = ForwardPasses()

    @staticmethod
    def check_settings(*, regions: str | Tensor, count: int, samples: int, **_: Any) -> None:
        """Raise an `InputError` if a setting is out of range."""
        if isinstance(regions, str):
            require_known("kind of regions", regions, NAMED_REGIONS)
        check_range("count", count, least=1, most=MAX_REGIONS)
        check_range("samples", samples, least=2, most=MAX_SAMPLES)

    @property
    def run_count(self) -> int:
        """The number of coalitions."""
        return self.samples

    @torch.no_grad()
    def answer(self, question: Question) -> Tensor:
        """Return the Shapley value of each pixel's region, divided by the region's size."""
        inputs, rows = question.inputs, question.rows
        reference: Baseline = question.baselines
        if reference is None:
            reference = question.baseline_of_rows(self.reference)
        baselines = baseline_for(inputs, reference)
        run = run_of(question, self._passes)
        whole = rows.scores(question.outputs)
        empty = rows.scores(run(baselines))
        pixels = torch.zeros(len(inputs), *pixel_size(inputs), dtype=inputs.dtype).to(inputs)
        for own in rows_by_image(question):
            row = own[0]
            labels = self._labels(question, row)
            kept, weights = coalitions(int(labels.max()) + 1, self.samples, seed=question.seed)
            scores: list[Tensor] = []
            for part in kept.split(question.batch_size):
                mask = part.to(labels.device)[:, labels]
                mask = mask[:, None] if inputs.dim() > 2 else mask
                outputs = run(torch.where(mask, inputs[row], baselines[row]))
                by_row = [rows.pick([k] * len(part)).scores(outputs) for k in own]
                scores.append(torch.stack(by_row, 1))
            found = torch.cat(scores) if scores else inputs.new_zeros(0, len(own))
            values = shapley_values(
                kept, weights, in_float64(found - empty[own]).cpu(),
                in_float64((whole - empty)[own]).cpu(),
            )  # fmt: skip
            density = values / labels.flatten().bincount().cpu()
            pixels[own] = density[:, labels.cpu()].to(pixels)
        return as_map(pixels, inputs)

    def _labels(self, question: Question, row: int) -> Tensor:
        """Return the region of each pixel of a row's image, numbered from 0, (*size)."""
        inputs = question.inputs
        size = pixel_size(inputs)
        if isinstance(self.regions, Tensor):
            labels = self.regions.to(inputs.device)
            if labels.shape == (question.images, *size):
                labels = labels[question.rows.image[row]]
            if labels.shape != size or labels.is_floating_point() or labels.is_complex():
                raise InputError(
                    f"regions must be whole numbers of shape {size}, or with as many in front as "
                    f"there are images, not {labels.dtype} of shape {tuple(self.regions.shape)}"
                )
        elif self.regions == "segments":
            labels = segments(inputs[row], self.count)
        else:
            labels = grid(size, self.count).to(inputs.device)
        _, numbered = labels.unique(return_inverse=True)
        if int(numbered.max()) >= MAX_REGIONS:
            raise InputError(f"there are more than {MAX_REGIONS:,} regions; use fewer")
        return numbered


@lru_cache(maxsize=4)
@torch.inference_mode(False)
def grid(size: tuple[int, ...], count: int) -> Tensor:
    """Return labels of about `count` equal cells, with as many along each side, (*size)."""
    cells = max(1, round(count ** (1 / len(size))))
    labels = torch.zeros(size, dtype=torch.long)
    for dim, length in enumerate(size):
        along = torch.arange(length) * min(cells, length) // length
        labels = labels * cells + along.view(-1, *(1,) * (len(size) - dim - 1))
    return labels


def segments(image: Tensor, count: int) -> Tensor:
    """Return labels of about `count` segments of similar colour, (*size), from SLIC.

    Raises:
        InputError: If the image is a signal or a vector, or scikit-image is not installed.
    """
    if image.dim() < 3:
        raise InputError("regions='segments' needs images or volumes; use regions='grid'")
    try:
        segmentation: Any = import_module("skimage.segmentation")
    except ImportError as error:
        raise InputError(
            "regions='segments' needs scikit-image: pip install 'dmbp[demo]', or use regions='grid'"
        ) from error
    pixels = image.detach().cpu().double()
    low, high = pixels.aminmax()
    pixels = (pixels - low) / (high - low).clamp(min=torch.finfo(pixels.dtype).tiny)
    is_colour = len(image) == 3 and image.dim() == 3
    found = segmentation.slic(
        pixels.movedim(0, -1).numpy(),
        n_segments=count,
        compactness=COMPACTNESS if is_colour else COMPACTNESS / 100,
        convert2lab=is_colour,
        channel_axis=-1,
        start_label=0,
    )
    return torch.from_numpy(found).to(image.device)


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def coalitions(regions: int, samples: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return which regions each coalition keeps, (coalitions, regions), and its weight.

    Coalitions of one region, and of all but one, are taken first, then those of two, and so on, as
    long as all of a size fit into its share of what is left of `samples`. The others are drawn by
    the kernel, in pairs that together keep every region once.
    """
    sizes = range(1, regions)
    mass = {s: (regions - 1) / (s * (regions - s)) for s in sizes}
    kept: list[Tensor] = []
    weights: list[Tensor] = []
    left = samples
    for size in range(1, regions // 2 + 1):
        pair = {size, regions - size}
        count = math.comb(regions, size)
        share = sum(mass[s] for s in pair) / sum(mass.values())
        if left * share < len(pair) * count * (1 - 1e-9):
            break
        inside = torch.tensor(list(combinations(range(regions), size)))
        every = torch.zeros(count, regions, dtype=torch.bool).scatter_(1, inside, True)
        every = torch.cat([every, ~every]) if len(pair) == 2 else every
        kept.append(every)
        weights.append(torch.full((len(every),), mass[size] / count, dtype=torch.float64))
        left -= len(every)
        mass = {s: m for s, m in mass.items() if s not in pair}
    if mass:
        drawn = _drawn(regions, mass, max(1, left // 2), seed=seed)
        kept.append(drawn)
        weights.append(
            torch.full((len(drawn),), sum(mass.values()) / len(drawn), dtype=torch.float64)
        )
    if not kept:
        return torch.zeros(0, regions, dtype=torch.bool), torch.zeros(0, dtype=torch.float64)
    return torch.cat(kept), torch.cat(weights)


def _drawn(regions: int, mass: Mapping[int, float], pairs: int, *, seed: int) -> Tensor:
    """Draw coalitions with sizes in proportion to their mass, each followed by its complement."""
    generator = torch.Generator().manual_seed(seed)
    shares = torch.tensor(list(mass.values()), dtype=torch.float64)
    which = torch.multinomial(shares, pairs, replacement=True, generator=generator)
    size = torch.tensor(list(mass))[which]
    place = torch.rand(pairs, regions, generator=generator).argsort(1).argsort(1)
    kept = place < size[:, None]
    return torch.stack([kept, ~kept], 1).flatten(0, 1)


def shapley_values(kept: Tensor, weights: Tensor, gains: Tensor, totals: Tensor) -> Tensor:
    """Solve the weighted least squares whose solution adds up to the totals.

    Args:
        kept: Which regions each coalition keeps, (coalitions, regions).
        weights: The weight of each coalition.
        gains: What each coalition's score is above the empty one's, (coalitions, rows).
        totals: What the whole image's score is above it, (rows,).

    Returns:
        The value of each region, (rows, regions).
    """
    design = kept.to(gains)
    inverse = torch.linalg.pinv((design.T * weights) @ design, hermitian=True)
    free = inverse @ ((design.T * weights) @ gains)
    ones = inverse.sum(1, keepdim=True)
    if design.shape[1] == 1:
        return totals[:, None]
    return (free - ones * (free.sum(0) - totals) / ones.sum()).T
