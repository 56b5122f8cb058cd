"""A batch of rows to explain together, as attribution methods and the decomposer receive it.

A row is one target of one image. A method receives a `Question` and returns a map for each row. The
question holds everything that it may need: the model, images, targets and the model's outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from dmbp.baseline import Baseline
from dmbp.errors import InputError
from dmbp.linear.linearizer import Linearizer
from dmbp.linear.model.runner import ModelRunner
from dmbp.linear.network import LinearNetwork
from dmbp.linear.targets import TargetRows


@dataclass(frozen=True)
class Question:
    """A batch of rows to explain together.

    Args:
        linearizer: Freezes the model, with the extra inputs of these rows.
        inputs: The image of each row, (rows, …).
        rows: The target of each row.
        images: How many images the whole call explains.
        baselines: What to compare each image with, shaped like `inputs`, or None.
        batch_size: The most images that the model may be run on at once.
        seed: The seed of random numbers. All batches of a call share it, so a map does not depend
            on the batch it is in.
        known_outputs: The model's outputs at `inputs`, (rows, classes), if it has been run already.
    """

    linearizer: Linearizer
    inputs: Tensor
    rows: TargetRows
    images: int
    baselines: Tensor | None = None
    batch_size: int = 1
    seed: int = 0
    known_outputs: Tensor | None = None

    @property
    def runner(self) -> ModelRunner:
        """Runs the model with the extra inputs of these rows."""
        return self.linearizer.runner

    @cached_property
    def outputs(self) -> Tensor:
        """The model's outputs at each row's image; the model is run when they are first read."""
        if self.known_outputs is not None:
            return self.known_outputs
        return self.runner.outputs(self.inputs)

    def network(self) -> LinearNetwork:
        """Return the model frozen at each row's image.

        If rows were read before the model was run, its outputs settle the number of classes.
        """
        rows = self.rows.among(self.outputs.shape[1])
        return self.linearizer.freeze(self.inputs, self.outputs, rows)

    def baseline_of_rows(self, baseline: Baseline) -> Baseline:
        """Return the part of a method's own baseline that belongs to these rows.

        A tensor may hold one baseline for every image of the call.
        """
        if not isinstance(baseline, Tensor) or baseline.dim() != self.inputs.dim():
            return baseline
        if len(baseline) == 1:
            return baseline
        if len(baseline) != self.images:
            raise InputError(f"{len(baseline)} references were given for {self.images} images")
        return baseline[list(self.rows.image)]

    def split(self, size: int) -> "list[Question]":
        """Split into questions of at most `size` rows, each run on at most `size` images."""
        return [replace(self.pick(k), batch_size=size) for k in self.rows.batches(size)]

    def pick(self, indices: Sequence[int]) -> "Question":
        """Return the question about the rows at `indices`."""
        return replace(
            self,
            inputs=self.inputs[indices],
            rows=self.rows.pick(indices),
            baselines=None if self.baselines is None else self.baselines[indices],
            known_outputs=self.outputs[indices],
        )

    def generator(self) -> torch.Generator:
        """Return a generator on the CPU, so that it draws the same numbers for every device."""
        return torch.Generator().manual_seed(self.seed)
