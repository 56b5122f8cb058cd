"""Triton kernels for the terms and the loss's seeds.

Terms and seeds in Triton: two small kernels from the last activations to what the loss asks.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from dmbp.engine.gpu.state import HISTORY_SLOTS, LearningState
from dmbp.engine.gpu.triton.launch import launch
from dmbp.engine.plan.tail import Tail


@triton.jit(do_not_specialize=["rows", "first", "blocks"])
def partial_scores(
    sums, iteration, h, tail, elements, rows, first, parts_a_row, blocks,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """⟨tail, h⟩ of every row and stream, in `PARTS` partial sums; the iteration is counted."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    total = tl.zeros((BLOCK,), tl.float32)
    start = row.to(tl.int64) * elements
    of = (row % rows).to(tl.int64) * elements
    for block in range(blocks):
        k = (block * PARTS + part) * BLOCK + tl.arange(0, BLOCK)
        ok = k < elements
        value = tl.load(h + start + k, ok, other=0.0).to(tl.float32)
        total += value * tl.load(tail + of + k, ok, other=0.0)
    tl.store(sums + row * parts_a_row + first + part, tl.sum(total, 0))
    if row + part + first == 0:
        tl.store(iteration, tl.load(iteration) + 1)


@triton.jit(do_not_specialize=["rows"])
def terms_and_seeds(
    past, since, seeds, starts, sizes, scales, products, streams, iteration, sums, constant, output,
    unit, rows, parts_a_row,
    POSITIVE: tl.constexpr, NEGATIVE: tl.constexpr, NUISANCE: tl.constexpr,
    IS_BOTH: tl.constexpr, IS_SCALED: tl.constexpr, PARTS: tl.constexpr,
    PAST: tl.constexpr,
):  # fmt: skip
    """y⁺ and y⁻ of a row from their partial sums, and what the loss asks of each stream.

    Where gradients are scaled, their scale follows the terms (`scaling.followed`).
    """
    row = tl.program_id(0)
    k = tl.arange(0, PARTS)
    ok = k < parts_a_row
    bias = tl.load(constant + row)
    positive = bias + tl.sum(tl.load(sums + row * parts_a_row + k, ok, other=0.0), 0)
    negative = bias + tl.sum(tl.load(sums + (rows + row) * parts_a_row + k, ok, other=0.0), 0)
    nuisance = tl.load(output + row) - positive - negative
    side = tl.where(nuisance < 0, NUISANCE, -NUISANCE)
    above = POSITIVE + side
    below = NEGATIVE + side
    place = (tl.load(iteration) - 1 - tl.load(since)) % PAST
    terms = past + place * 2 * rows + row
    tl.store(terms, positive)
    tl.store(terms + rows, negative)
    stream = tl.where(above != 0, 0, 1)
    tl.store(streams + row, stream)
    by = tl.load(starts + row)
    if IS_SCALED:
        size = tl.abs(positive) + tl.abs(negative)
        first = tl.load(sizes + row)
        first = tl.where(first > 0, first, size)
        growth = tl.maximum(size / tl.maximum(first, 1e-30), 1.0)
        by *= tl.exp2(-tl.floor(tl.log2(growth) / 2))
        tl.store(sizes + row, first)
        tl.store(scales + row, by)
        tl.store(products + row, by * unit)
    if IS_BOTH:
        tl.store(seeds + row, above * by)
        tl.store(seeds + rows + row, below * by)
    else:
        tl.store(seeds + row, tl.where(stream == 0, above, below) * by)


PARTS = 32
"""Partial sums a row and value, so that a single row's score is not left to one multiprocessor."""

BLOCK = 1024


class TritonScores:
    """Computes the terms of an iteration and the seeds of its way back."""

    def __init__(self, tail: Tail, output: Tensor, learning: LearningState) -> None:
        self._tail = tail
        self._output = output
        self._learning = learning
        self._sums = torch.zeros(
            2 * learning.rows, PARTS * len(tail.gradients), device=output.device
        )

    def update(self, values: Mapping[int, Tensor]) -> None:
        """Set the learning's terms, seeds and streams, and count the iteration."""
        learning, loss = self._learning, self._learning.loss
        rows, width = learning.rows, self._sums.shape[1]
        for k, (index, gradient) in enumerate(self._tail.gradients.items()):
            elements = gradient[0].numel()
            launch(
                partial_scores, (2 * rows, PARTS),
                self._sums, learning.iteration, values[index], gradient, elements, rows, k * PARTS,
                width, -(-elements // (PARTS * BLOCK)), PARTS=PARTS, BLOCK=BLOCK,
            )  # fmt: skip
        launch(
            terms_and_seeds, (rows,),
            learning.past, learning.since, learning.seeds, learning.starts, learning.sizes,
            learning.scales, learning.products, learning.streams, learning.iteration, self._sums,
            self._tail.constant, self._output, learning.unit, rows, width,
            POSITIVE=float(loss.positive), NEGATIVE=float(loss.negative),
            NUISANCE=float(loss.nuisance), IS_BOTH=learning.is_both,
            IS_SCALED=learning.is_scaled,
            PARTS=1 << (width - 1).bit_length(), PAST=HISTORY_SLOTS,
        )  # fmt: skip
