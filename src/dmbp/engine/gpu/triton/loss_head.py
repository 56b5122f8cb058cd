"""The loss head in Triton: from the last activations to terms and seeds, without the CPU.

Two small kernels fuse the score's inner products, the loss's gradient, the history and the update
of the gradient scales. The first splits every inner product into partial sums, so that a single row
keeps more than one multiprocessor busy; the second adds them up, with one program per row.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from dmbp.engine.gpu.learning_state import LearningState
from dmbp.engine.gpu.triton.launch import launch
from dmbp.engine.plan.tail import Tail


@triton.jit(do_not_specialize=["rows", "first", "blocks"])
def partial_scores_kernel(
    sums, iteration, h, tail, elements, rows, first, parts_per_row, blocks,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute partial sums of ⟨tail, h⟩ for every row of both streams, and count the iteration.

    Reads `h` (2 · rows, elements) and `tail` (rows, elements). Program (row, part) writes its sum
    to column `first` + part of `sums` (2 · rows, parts_per_row); one program also increments
    `iteration`.
    """
    row = tl.program_id(0)
    part = tl.program_id(1)
    total = tl.zeros((BLOCK,), tl.float32)
    start = row.to(tl.int64) * elements
    tail_start = (row % rows).to(tl.int64) * elements
    for block in range(blocks):
        k = (block * PARTS + part) * BLOCK + tl.arange(0, BLOCK)
        ok = k < elements
        value = tl.load(h + start + k, ok, other=0.0).to(tl.float32)
        total += value * tl.load(tail + tail_start + k, ok, other=0.0)
    tl.store(sums + row * parts_per_row + first + part, tl.sum(total, 0))
    if row + part + first == 0:
        tl.store(iteration, tl.load(iteration) + 1)


@triton.jit(do_not_specialize=["rows"])
def terms_and_seeds_kernel(
    history, history_start, seeds, initial_scales, initial_sizes, scales, product_scales,
    active_streams, iteration, sums, constant, output, unit, rows, parts_per_row,
    POSITIVE: tl.constexpr, NEGATIVE: tl.constexpr, NUISANCE: tl.constexpr,
    BOTH_STREAMS: tl.constexpr, SCALES_GRADIENTS: tl.constexpr, PARTS: tl.constexpr,
    HISTORY_SLOTS: tl.constexpr,
):  # fmt: skip
    """Add up a row's partial sums to y⁺ and y⁻, and compute the seeds, the loss's gradients.

    Reads `sums`, the tail's `constant` and the model's `output`. Writes the terms to the
    iteration's slot of `history`, and the row's `seeds` and active stream. If `SCALES_GRADIENTS`,
    it also updates the row's scales as `half_precision.updated_gradient_scales` does.
    """
    row = tl.program_id(0)
    k = tl.arange(0, PARTS)
    ok = k < parts_per_row
    bias = tl.load(constant + row)
    positive = bias + tl.sum(tl.load(sums + row * parts_per_row + k, ok, other=0.0), 0)
    negative = bias + tl.sum(tl.load(sums + (rows + row) * parts_per_row + k, ok, other=0.0), 0)
    nuisance = tl.load(output + row) - positive - negative
    side = tl.where(nuisance < 0, NUISANCE, -NUISANCE)
    positive_seed = POSITIVE + side
    negative_seed = NEGATIVE + side
    slot = (tl.load(iteration) - 1 - tl.load(history_start)) % HISTORY_SLOTS
    terms = history + slot * 2 * rows + row
    tl.store(terms, positive)
    tl.store(terms + rows, negative)
    stream = tl.where(positive_seed != 0, 0, 1)
    tl.store(active_streams + row, stream)
    scale = tl.load(initial_scales + row)
    if SCALES_GRADIENTS:
        size = tl.abs(positive) + tl.abs(negative)
        first_size = tl.load(initial_sizes + row)
        first_size = tl.where(first_size > 0, first_size, size)
        growth = tl.maximum(size / tl.maximum(first_size, 1e-30), 1.0)
        scale *= tl.exp2(-tl.floor(tl.log2(growth) / 2))
        tl.store(initial_sizes + row, first_size)
        tl.store(scales + row, scale)
        tl.store(product_scales + row, scale * unit)
    if BOTH_STREAMS:
        tl.store(seeds + row, positive_seed * scale)
        tl.store(seeds + rows + row, negative_seed * scale)
    else:
        tl.store(seeds + row, tl.where(stream == 0, positive_seed, negative_seed) * scale)


PARTS = 32
"""The number of partial sums per row and value; they let one row use several multiprocessors."""

BLOCK = 1024
"""The number of elements that a program of `partial_scores_kernel` adds at a time."""


class TritonLossHead:
    """Computes an iteration's terms, and the seeds of its backward pass."""

    def __init__(self, tail: Tail, output: Tensor, learning: LearningState) -> None:
        self._tail = tail
        self._output = output
        self._learning = learning
        self._sums = torch.zeros(
            2 * learning.rows, PARTS * len(tail.gradients), device=output.device
        )

    def update(self, values: Mapping[int, Tensor]) -> None:
        """Write the iteration's terms, seeds and active streams into the state, and count it."""
        learning, loss = self._learning, self._learning.loss
        rows, width = learning.rows, self._sums.shape[1]
        for k, (index, gradient) in enumerate(self._tail.gradients.items()):
            elements = gradient[0].numel()
            launch(
                partial_scores_kernel, (2 * rows, PARTS),
                self._sums, learning.iteration, values[index], gradient, elements, rows, k * PARTS,
                width, -(-elements // (PARTS * BLOCK)), PARTS=PARTS, BLOCK=BLOCK,
            )  # fmt: skip
        launch(
            terms_and_seeds_kernel, (rows,),
            learning.history, learning.history_start, learning.seeds, learning.initial_scales,
            learning.initial_sizes, learning.scales, learning.product_scales,
            learning.active_streams, learning.iteration, self._sums, self._tail.constant,
            self._output, learning.unit, rows, width,
            POSITIVE=float(loss.positive), NEGATIVE=float(loss.negative),
            NUISANCE=float(loss.nuisance), BOTH_STREAMS=learning.touches_both_streams,
            SCALES_GRADIENTS=learning.scales_gradients,
            PARTS=1 << (width - 1).bit_length(), HISTORY_SLOTS=learning.history_slots,
        )  # fmt: skip
