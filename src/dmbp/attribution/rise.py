"""RISE: how probable the class is when the model sees only random parts of the image.

    a = (1 / (N · open)) Σ_k p(mask_k ⊙ x) mask_k       N masks, in which a share `open` is open

    >>> RISE(model, masks=50).attribute(images, target=3).shape
    torch.Size([1, 1, 8, 8])

Masks are drawn as they are used, so memory does not grow with their number. A map is a mean over
thousands of masks, in which rounding errors average out: on GPUs the model therefore runs in TF32,
PyTorch's own default for convolutions, in a third of the time. On CPUs a model that can be captured
runs as `dmbp.engine.ForwardPasses` has it, with batch norms folded and convolutions fused, which
for the built-in model takes three fifths of the time and changes maps by rounding alone; with
`precision="bfloat16"` it takes a third, and maps correlate above .999 with those in float32.

Petsiuk, Das and Saenko, "RISE: Randomized Input Sampling for Explanation of Black-box Models", BMVC
2018.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dmbp.attribution.base import Method
from dmbp.attribution.passes import rows_by_image
from dmbp.attribution.stage import require_places, resized
from dmbp.engine import ForwardPasses
from dmbp.errors import DMBPError, InputError, require_known
from dmbp.linear import Question
from dmbp.linear.model.signature import Output
from dmbp.linear.model.wrappers import Model
from dmbp.precision import RUN_PRECISIONS, reduced_precision
from dmbp.probabilities import Activation, check_activation
from dmbp.validation import check_range


@dataclass(frozen=True)
class RISEPreset:
    """The number of masks, the cells per side, and the probability that a cell is open."""

    masks: int
    cells: int
    open: float
    activation: Activation


BLOCK = 128
"""How many masks are drawn at a time; fixed, so that the batch size does not change them."""

MOST_PIXELS = 2**26
"""The most pixels of masks that are enlarged at once; a block for 224 × 224 has 10 million."""

MAX_MASKS, MAX_CELLS = 100_000, 1000

WORTH_CAPTURING = 1000
"""From so many masks on, a model on a CPU is captured only to be run faster."""

PRESETS: Mapping[str, RISEPreset] = {
    "authors": RISEPreset(6000, 8, 0.1, "softmax"),
    "torchray": RISEPreset(8000, 7, 0.5, "sigmoid"),
}


def _resolve_preset(preset: str, **overrides: Any) -> RISEPreset:
    """Return a preset with all overrides that are not None, or raise an `InputError`."""
    require_known("preset", preset, PRESETS)
    overrides = {name: value for name, value in overrides.items() if value is not None}
    resolved = replace(PRESETS[preset], **overrides)
    check_range("masks", resolved.masks, least=1, most=MAX_MASKS)
    check_range("cells", resolved.cells, least=1, most=MAX_CELLS)
    if not 0 < resolved.open <= 1:
        raise InputError(f"open must be above 0 and at most 1, not {resolved.open}")
    return resolved


class RISE(Method):
    """Random masks, averaged with the target's probability as their weight.

    A target that is a function of the outputs receives the outputs, not probabilities.

    Args:
        model: The model to explain.
        preset: "authors" (6000 masks of 8 × 8 cells, a tenth of them open, softmax) or "torchray"
            (8000 masks of 7 × 7 cells, half of them open, sigmoid).
        masks: How many masks; overrides the preset, as the next three do.
        cells: How many cells a mask has along each side.
        open: The probability that a cell is open.
        activation: Turns outputs into probabilities: "softmax", "sigmoid", "none" or a function.
        precision: The precision that a float32 model is run in: "tf32" (float32 on CPUs),
            "bfloat16" (by `torch.autocast`, unless the model is captured) or "float32".
        generator: Draws a new seed at every call; without one, all calls use the same numbers.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.

    Raises:
        InputError: If the preset or the precision is unknown, or a number is out of range.
    """

    runs_many_points = True
    run_setting = "masks"

    def __init__(
        self,
        model: Model,
        *,
        preset: str = "authors",
        masks: int | None = None,
        cells: int | None = None,
        open: float | None = None,
        activation: Activation | None = None,
        precision: str = "tf32",
        generator: torch.Generator | None = None,
        output: Output = None,
    ) -> None:
        super().__init__(model, generator=generator, output=output)
        require_known("precision", precision, RUN_PRECISIONS)
        self.precision = precision
        resolved = _resolve_preset(preset, masks=masks, cells=cells, open=open)
        self.masks, self.cells, self.open = resolved.masks, resolved.cells, resolved.open
        self._activation: Activation = activation or resolved.activation
        check_activation(self._activation)
        dtypes = (torch.bfloat16,) if precision == "bfloat16" else None
        self._forward_passes = ForwardPasses(dtypes)

    @staticmethod
    def check_settings(*, preset: str, precision: str, **settings: Any) -> None:
        """Raise an `InputError` if a setting is out of range."""
        require_known("precision", precision, RUN_PRECISIONS)
        _resolve_preset(preset, **{name: settings[name] for name in ("masks", "cells", "open")})

    @property
    def run_count(self) -> int:
        """The number of masks."""
        return self.masks

    @torch.no_grad()
    def answer(self, question: Question) -> Tensor:
        """Return the average mask for each row, weighted by probability."""
        inputs = question.inputs
        require_places("rise", inputs)
        total = inputs.new_zeros(len(inputs), 1, *inputs.shape[2:], dtype=_sum_dtype(inputs))
        run = self._fast_run(question) or (lambda images: self._run(question, images))
        probabilities = question.runner.activation(self._activation)
        for block in self._masks(question.generator(), inputs):
            for rows in rows_by_image(question):
                for masks in block.split(question.batch_size):
                    outputs = run(masks * inputs[rows[0]])
                    for row in rows:
                        targets = question.rows.pick([row] * len(masks))
                        weight = targets.scores(outputs, probabilities).to(total.dtype)
                        total[row] += torch.tensordot(weight, masks.to(total.dtype), 1)
        return (total / (self.masks * self.open)).to(inputs.dtype)

    def _fast_run(self, question: Question) -> Callable[[Tensor], Tensor] | None:
        """Return a faster way to run the model on a CPU, or None if there is none."""
        inputs, linearizer = question.inputs, question.linearizer
        if inputs.device.type != "cpu" or inputs.dtype != torch.float32:
            return None
        captured = linearizer.captured_graph(inputs)
        if captured is None and self.masks >= WORTH_CAPTURING:
            with suppress(DMBPError):  # RISE needs no graph, so any model will do
                question.pick([0]).network()
            captured = linearizer.captured_graph(inputs)
        if captured is None:
            return None
        return self._forward_passes.find(captured, inputs, question.outputs)

    def _run(self, question: Question, images: Tensor) -> Tensor:
        """Return the model's outputs for masked images."""
        if images.dtype != torch.float32:
            return question.runner.run(images)
        with reduced_precision(self.precision, images.device.type):
            return question.runner.forward(images)

    def _masks(self, generator: torch.Generator, inputs: Tensor) -> Iterator[Tensor]:
        """Yield all masks in blocks (masks, 1, *size)."""
        size = inputs.shape[2:]
        cells = [math.ceil(side / self.cells) for side in size]
        large = [(self.cells + 1) * cell for cell in cells]
        together = max(1, MOST_PIXELS // math.prod(large))
        grid_size = (self.cells,) * len(size)
        for start in range(0, self.masks, BLOCK):
            count = min(BLOCK, self.masks - start)
            grid = torch.rand(BLOCK, 1, *grid_size, generator=generator) < self.open
            drawn = [torch.randint(cell, (BLOCK, 1), generator=generator) for cell in cells]
            corners = torch.cat(drawn, 1).tolist()
            for part in torch.arange(count).split(together):
                enlarged = resized(grid[part].to(inputs), large)
                yield torch.stack(
                    [_cut(mask, corners[k], size) for mask, k in zip(enlarged, part, strict=True)]
                )


def _cut(mask: Tensor, corner: Sequence[int], size: Sequence[int]) -> Tensor:
    """Return the part of a mask (1, ...) of this size that begins at a corner."""
    return mask[(slice(None), *(slice(k, k + n) for k, n in zip(corner, size, strict=True)))]


def _sum_dtype(inputs: Tensor) -> torch.dtype:
    """Return at least float32, because half precision cannot hold a sum of thousands."""
    return torch.promote_types(inputs.dtype, torch.float32)
