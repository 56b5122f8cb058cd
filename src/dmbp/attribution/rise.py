"""RISE: how probable the class is when only random parts of the image are seen.

    a = (1 / Np) Σ_k p(mask_k ⊙ x) mask_k

    >>> RISE(model, masks=50).attribute(images, target=3).shape
    torch.Size([1, 1, 8, 8])

Petsiuk, Das and Saenko, "RISE: Randomized Input Sampling for Explanation of Black-box Models", BMVC
2018. Masks are made as they are used, so memory does not grow with their number.

A map is a mean over thousands of masks, in which rounding averages out: on GPUs the model sees them
in TF32, PyTorch's own default there, at a third of the time.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from dmbp.attribution.base import Method, Question
from dmbp.errors import InputError, require_known
from dmbp.linear.model.signature import Output
from dmbp.linear.model.wrappers import Model
from dmbp.precision import RUN_PRECISIONS, reduced_precision
from dmbp.probabilities import Activation, activation_function


@dataclass(frozen=True)
class Masking:
    """How many masks, of how many cells a side, each open with probability `open`."""

    masks: int
    cells: int
    open: float
    activation: Activation


BLOCK = 128
"""Masks drawn at a time; a number of its own, so that no batch size changes what is drawn."""

PRESETS: Mapping[str, Masking] = {
    "authors": Masking(6000, 8, 0.1, "softmax"),
    "torchray": Masking(8000, 7, 0.5, "sigmoid"),
}


class RISE(Method):
    """Random masks weighted by the probability of the target: the regions it needs.

    A target that is a function of the outputs is handed the outputs, not probabilities.

    `preset` is "authors" (6000 masks of 8 × 8 cells, a tenth open) or "torchray" (8000, 7 × 7, half
    open, sigmoid); what else is given overrides it. `precision` is what a model in single precision
    is run in: "tf32", "bfloat16" by way of `torch.autocast`, or "float32".
    """

    runs_many_points = True

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
        require_known("preset", preset, PRESETS)
        require_known("precision", precision, RUN_PRECISIONS)
        self.precision = precision
        start = PRESETS[preset]
        self.masks = start.masks if masks is None else masks
        self.cells = start.cells if cells is None else cells
        self.open = start.open if open is None else open
        self._activation = activation_function(activation or start.activation)
        if self.masks < 1 or self.cells < 1 or not 0 < self.open <= 1:
            raise InputError(
                "masks and cells must be 1 or more and open above 0, at most 1, not "
                f"{self.masks, self.cells, self.open}"
            )

    @torch.no_grad()
    def answer(self, question: Question) -> Tensor:
        """The average mask of some rows, weighted by probability."""
        inputs = question.inputs
        if inputs.dim() != 4:
            raise InputError(
                "rise needs images of shape (batch, channel, height, width), not "
                f"{tuple(inputs.shape)}"
            )
        total = inputs.new_zeros(len(inputs), 1, *inputs.shape[2:], dtype=_wide(inputs))
        rows_of: dict[int, list[int]] = {}  # an image asked about twice is masked once
        for row, image in enumerate(question.rows.image):
            rows_of.setdefault(image, []).append(row)
        for block in self._masks(question.generator(), inputs):
            for rows in rows_of.values():
                for masks in block.split(question.batch):
                    outputs = self._seen(question, masks * inputs[rows[0]])
                    for row in rows:
                        asked = question.rows.pick([row] * len(masks))
                        weight = asked.scores(outputs, self._activation).to(total.dtype)
                        total[row] += torch.tensordot(weight, masks.to(total.dtype), 1)
        return (total / (self.masks * self.open)).to(inputs.dtype)

    def _seen(self, question: Question, images: Tensor) -> Tensor:
        """The model's outputs of masked images."""
        if images.dtype != torch.float32:
            return question.linearizer.run(images)
        with reduced_precision(self.precision, images.device.type):
            return question.linearizer.run_as_set(images)

    def _masks(self, generator: torch.Generator, inputs: Tensor) -> Iterator[Tensor]:
        """All masks (some, 1, height, width), a block at a time."""
        height, width = inputs.shape[2:]
        tall, wide = (math.ceil(side / self.cells) for side in (height, width))
        size = ((self.cells + 1) * tall, (self.cells + 1) * wide)
        for start in range(0, self.masks, BLOCK):
            count = min(BLOCK, self.masks - start)
            grid = torch.rand(BLOCK, 1, self.cells, self.cells, generator=generator) < self.open
            down = torch.randint(tall, (BLOCK, 1), generator=generator) + torch.arange(height)
            across = torch.randint(wide, (BLOCK, 1), generator=generator) + torch.arange(width)
            large = functional.interpolate(grid[:count].to(inputs), size, mode="bilinear")
            which = torch.arange(count)[:, None, None]
            yield large[which, 0, down[:count, :, None], across[:count, None, :]][:, None]


def _wide(inputs: Tensor) -> torch.dtype:
    """Half precision has no room for a sum of thousands."""
    return torch.promote_types(inputs.dtype, torch.float32)
