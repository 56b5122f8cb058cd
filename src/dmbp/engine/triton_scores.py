"""Terms and seeds in Triton: two small kernels from the last activations to what the loss asks."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dmbp.engine import triton_kernels
from dmbp.engine.learning import PAST, Learning
from dmbp.engine.tail import Tail
from dmbp.engine.triton_launch import launch

kernels: Any = triton_kernels  # whose arguments Triton reads in its own way

PARTS = 32
"""Partial sums a row and value, so that a single row's score is not left to one multiprocessor."""

BLOCK = 1024


class TritonScores:
    """Computes the terms of an iteration and the seeds of its way back."""

    def __init__(self, tail: Tail, output: Tensor, learning: Learning) -> None:
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
                kernels.partial_scores, (2 * rows, PARTS),
                self._sums, learning.iteration, values[index], gradient, elements, rows, k * PARTS,
                width, -(-elements // (PARTS * BLOCK)), PARTS=PARTS, BLOCK=BLOCK,
            )  # fmt: skip
        launch(
            kernels.terms_and_seeds, (rows,),
            learning.past, learning.since, learning.seeds, learning.starts, learning.sizes,
            learning.scales, learning.products, learning.streams, learning.iteration, self._sums,
            self._tail.constant, self._output, learning.unit, rows, width,
            POSITIVE=float(loss.positive), NEGATIVE=float(loss.negative),
            NUISANCE=float(loss.nuisance), IS_BOTH=learning.is_both,
            IS_SCALED=learning.is_scaled,
            PARTS=1 << (width - 1).bit_length(), PAST=PAST,
        )  # fmt: skip
