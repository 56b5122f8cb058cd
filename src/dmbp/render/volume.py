"""Lay a volume out as one picture: a slice across each axis, and a look through all of it.

    +-----------------+-----------------+
    | one depth       | one column      |     the slices meet at the strongest evidence
    +-----------------+-----------------+
    | one row         | all depths      |     the strongest of all depths
    +-----------------+-----------------+

Everything that a panel shows of a volume (its values, the evidence, what was removed) is laid out
alike, so that panels and reports draw a `Montage` as they draw a photo.

    >>> montage = Montage((4, 6, 8), through=(1, 2, 3))
    >>> import numpy
    >>> montage.lay_out(numpy.zeros((4, 6, 8))).shape
    (13, 17)
    >>> [view.label for view in montage.views]
    ['depth 2 of 4', 'column 4 of 8', 'row 3 of 6', 'all depths']
"""

from dataclasses import dataclass

import numpy
import torch

from dmbp.decompose.details import gaussian
from dmbp.render.colour import Array

GAP = 1 / 60
"""White space between the parts of a montage, as a share of its longer side."""

FOCUS = 0.03
"""The strongest evidence is looked for in a map smoothed by this share of each side."""


@dataclass(frozen=True)
class View:
    """A part of a picture with a label, and the corner where it begins and its size in pixels."""

    label: str
    top: int
    left: int
    height: int
    width: int

    def cut(self, picture: Array) -> Array:
        """Return this part of a picture (height, width, …); it shares the picture's memory."""
        return picture[self.top : self.top + self.height, self.left : self.left + self.width]


@dataclass(frozen=True)
class Montage:
    """How a volume of this size (depth, height, width) is laid out.

    Attributes:
        size: Depth, height and width.
        through: The voxel that all slices go through.
    """

    size: tuple[int, int, int]
    through: tuple[int, int, int]

    @staticmethod
    def of(attribution: Array) -> "Montage":
        """Return slices through the strongest evidence of a map (depth, height, width).

        That is evidence for the target, or against it if there is no other; the middle if there is
        none at all.
        """
        size = (attribution.shape[0], attribution.shape[1], attribution.shape[2])
        strength = numpy.clip(attribution, 0, None)
        if not strength.any():
            strength = numpy.abs(attribution)
        if not strength.any():
            return Montage(size, (size[0] // 2, size[1] // 2, size[2] // 2))
        # In single precision: a convolution in double takes 30 times the memory of the volume.
        values = torch.from_numpy(numpy.ascontiguousarray(strength, dtype=numpy.float32))[None]
        smooth = gaussian(values, [FOCUS * side for side in size])[0]
        z, y, x = numpy.unravel_index(int(smooth.argmax()), size)
        return Montage(size, (int(z), int(y), int(x)))

    @property
    def views(self) -> tuple[View, ...]:
        """The labelled parts of the picture."""
        depth, height, width = self.size
        gap = max(1, round(GAP * 2 * max(self.size)))
        column, row = max(width, depth), max(height, depth)
        right, below = width + gap, height + gap
        across = (column - depth) // 2 if depth < width else 0
        down = (row - depth) // 2 if depth < height else 0
        z, y, x = (place + 1 for place in self.through)
        return (
            View(f"depth {z} of {depth}", 0, 0, height, width),
            View(f"column {x} of {width}", 0, right + across, height, depth),
            View(f"row {y} of {height}", below + down, 0, depth, width),
            View("all depths", below, right, height, width),
        )

    def lay_out(self, values: Array, *, fill: float = 0.0) -> Array:
        """Return values (depth, height, width, …) as one picture (height, width, …).

        The look through all depths shows the value of the largest magnitude. `fill` is what stands
        between the parts.
        """
        z, y, x = self.through
        strongest = numpy.abs(values).argmax(0)[None]
        parts = (
            values[z],
            values[:, :, x].swapaxes(0, 1),
            values[:, y],
            numpy.take_along_axis(values, strongest, 0)[0],
        )
        views = self.views
        size = max(k.top + k.height for k in views), max(k.left + k.width for k in views)
        picture = numpy.full((*size, *values.shape[3:]), fill, dtype=numpy.float64)
        for view, part in zip(views, parts, strict=True):
            view.cut(picture)[...] = part
        return picture
