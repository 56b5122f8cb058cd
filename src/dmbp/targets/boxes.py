"""`Box`: one of the boxes that a detector finds.

    Box(0)                       the first box of `find_boxes`, which lists the strongest first
    Box("cat")                   the strongest box of a class
    Box("cat", near=(64, 80))    the one of that class whose middle is nearest to a point

A detector gives many overlapping candidates. `find_boxes` keeps the strongest of those that overlap
(non-maximum suppression), so that a user can name one. What is explained is the raw score of that
candidate, before any suppression.

A `BoxLayout` knows where a detector's outputs hold boxes and scores. Those of YOLO are recognised
by their shape (`find_layout`); the loaders of other detectors bring their own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dmbp.errors import TargetError
from dmbp.linear.named_target import BoundTarget, NamedTarget, Point, TargetContext, exact

LAYOUT = "boxes"
"""The name of the layout among a context's details."""

LEAST_PROBABILITY = 0.25
"""The probability from which boxes are listed; the strongest box is listed anyway."""

MOST_OVERLAP = 0.45
"""Of boxes of a class that overlap by more (intersection over union), the strongest is listed."""

MOST_BOXES = 100
"""The most boxes that are listed."""

MOST_CANDIDATES = 1000
"""The most candidates among which overlapping ones are looked for."""

STRIDES = ((8, 16, 32), (8, 16, 32, 64), (16, 32), (4, 8, 16, 32))
"""The strides of the grids that YOLO predicts boxes on; the most common ones come first."""

CERTAIN = 1e-7
"""How near to 0 and 1 a probability may come before it is turned back into a score."""


class BoxLayout(ABC):
    """Reads boxes and scores from one image's outputs."""

    @abstractmethod
    def corners(self, outputs: Tensor, size: tuple[int, ...]) -> Tensor:
        """Return left, top, right and bottom of every candidate in pixels, (candidates, 4)."""

    @abstractmethod
    def scores(self, outputs: Tensor) -> Tensor:
        """Return the raw score of every class, (candidates, classes)."""

    @abstractmethod
    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probability of every class, (candidates, classes)."""

    def candidate(self, outputs: Tensor, box: FoundBox, size: tuple[int, ...]) -> int:  # noqa: ARG002
        """Return which candidate of any image's outputs stands for a box that was found."""
        return box.candidate


@dataclass(frozen=True)
class FoundBox:
    """A box that a detector finds.

    Attributes:
        candidate: The index of the candidate in the detector's outputs.
        index: The class.
        probability: The probability of the class.
        corners: Left, top, right and bottom in pixels of the model's input.
    """

    candidate: int
    index: int
    probability: float
    corners: tuple[float, float, float, float]

    @property
    def middle(self) -> Point:
        """The middle of the box."""
        left, top, right, bottom = self.corners
        return (left + right) / 2, (top + bottom) / 2


def find_boxes(
    outputs: Tensor, size: tuple[int, ...], layout: BoxLayout, *, index: int | None = None
) -> list[FoundBox]:
    """List the boxes that a detector finds, the strongest first.

    Args:
        outputs: One image's outputs.
        size: Height and width of the model's input.
        layout: Where the outputs hold boxes and scores.
        index: A class to which the list is limited.

    Returns:
        The boxes from `LEAST_PROBABILITY` on, and at least the strongest, without those that
        overlap a stronger one of the same class.
    """
    probabilities = layout.probabilities(outputs).detach().cpu()
    corners = layout.corners(outputs, size).detach().cpu().float()
    best, classes = probabilities.max(1)
    if index is not None:
        best, classes = probabilities[:, index], torch.full_like(classes, index)
    order = best.argsort(descending=True, stable=True)[:MOST_CANDIDATES]
    order = order[: max(1, int((best[order] >= LEAST_PROBABILITY).sum()))]
    kept: list[int] = []
    for candidate in order.tolist():
        rivals = [k for k in kept if classes[k] == classes[candidate]]
        if not rivals or overlaps(corners[candidate], corners[rivals]).max() <= MOST_OVERLAP:
            kept.append(candidate)
        if len(kept) == MOST_BOXES:
            break
    return [FoundBox(k, int(classes[k]), float(best[k]), tuple(corners[k].tolist())) for k in kept]


def overlaps(box: Tensor, others: Tensor) -> Tensor:
    """Return the intersection over union of a box with each of others."""
    start, end = torch.maximum(box[:2], others[:, :2]), torch.minimum(box[2:], others[:, 2:])
    shared = (end - start).clamp(min=0).prod(1)
    areas = (others[:, 2:] - others[:, :2]).clamp(min=0).prod(1)
    own = (box[2:] - box[:2]).clamp(min=0).prod()
    return shared / (areas + own - shared).clamp(min=1e-9)


@dataclass(frozen=True)
class Box(NamedTarget):
    """A box that a detector finds.

    Args:
        which: The number of the box in `find_boxes`, counted from 0, or a class as text: its name,
            or its number, such as "7". By default the strongest box.
        near: x and y of a pixel: of all boxes, or of those of the class, the one whose middle is
            nearest to it is taken.
    """

    which: int | str | None = None
    near: Point | None = None

    def __post_init__(self) -> None:
        if self.near is not None and isinstance(self.which, int):
            raise TargetError("a Box takes a number, or a class and a point, not both")

    def bind(self, context: TargetContext) -> BoundTarget:
        """Return the score of the box's class, for one image."""
        layout = layout_of(context)
        box, number = self._find(context, layout)
        index, size = box.index, context.size
        what = context.class_name(index)
        return BoundTarget(
            self,
            f"{what} in box {number}" if number is not None else f"{what} in the box",
            score=lambda outputs: layout.scores(outputs)[
                layout.candidate(outputs, box, size), index
            ],
            probability=lambda outputs, _: layout.probabilities(outputs)[
                layout.candidate(outputs, box, size), index
            ],
            region=_filled(box.corners, size),
            score_words=f"the detector's score for {what} in this box, before suppression",
        )

    def _find(self, context: TargetContext, layout: BoxLayout) -> tuple[FoundBox, int | None]:
        """Return the box, and its number among all that are found."""
        outputs, size = context.outputs, context.size
        found = find_boxes(outputs, size, layout)
        if isinstance(self.which, int) and not isinstance(self.which, bool):
            if not 0 <= self.which < len(found):
                last = len(found) - 1
                have = "one box, number 0" if last == 0 else f"boxes 0 to {last}"
                raise TargetError(f"there is no box {self.which}: the model finds {have}")
            return found[self.which], self.which
        own = found
        if self.which is not None:
            classes = layout.probabilities(outputs).shape[1]
            index = context.class_index(self.which, classes)
            own = [box for box in found if box.index == index]
            own = own or find_boxes(outputs, size, layout, index=index)
        if self.near is None:
            chosen = own[0]
        else:
            x, y = context.place(self.near)
            chosen = min(own, key=lambda b: (b.middle[0] - x) ** 2 + (b.middle[1] - y) ** 2)
        return chosen, found.index(chosen) if chosen in found else None

    @property
    def text(self) -> str:
        """Such as `box:3`, `box:cat`, `box:class=7` or `box:cat@near=64,80`."""
        which = "" if self.which is None else str(self.which)
        if self.near is not None:  # next to a point, a number is a class's
            return f"box:{which}@near={','.join(map(exact, self.near))}"
        is_class = isinstance(self.which, str) and which.strip().isdecimal()
        return f"box:{'class=' if is_class else ''}{which}"


def _filled(corners: Sequence[float], size: tuple[int, ...]) -> Tensor | None:
    """Return the inside of a box as a mask."""
    if len(size) != 2 or not all(map(math.isfinite, corners)):
        return None
    left, top, right, bottom = (round(side) for side in corners)
    mask = torch.zeros(size, dtype=torch.bool)
    mask[max(top, 0) : max(bottom, 1), max(left, 0) : max(right, 1)] = True
    return mask


@dataclass(frozen=True)
class YoloBoxes(BoxLayout):
    """Outputs of YOLO: (candidates, 4 + classes), each with its box's middle, width and height.

    Args:
        grids: Height, width and stride of the grids that the candidates lie on.
        is_transposed: Whether outputs are (4 + classes, candidates), as in version 8 and later.
        has_objectness: Whether the fifth number is the probability that there is any object.
        is_decoded: Whether boxes are in pixels; otherwise they are in units of the grids.
        are_probabilities: Whether scores went through a sigmoid.
        classes: How many classes there are, if other numbers follow, such as those of masks.
    """

    grids: tuple[tuple[int, int, int], ...]
    is_transposed: bool = False
    has_objectness: bool = False
    is_decoded: bool = True
    are_probabilities: bool = True
    classes: int | None = None

    def corners(self, outputs: Tensor, size: tuple[int, ...]) -> Tensor:  # noqa: ARG002
        """Return the corners of every candidate."""
        rows = self._rows(outputs)
        middle, sides = rows[:, :2], rows[:, 2:4]
        if not self.is_decoded:
            cells, strides = grid_cells(self.grids, rows)
            middle, sides = (middle + cells) * strides, sides.exp() * strides
        return torch.cat([middle - sides / 2, middle + sides / 2], 1)

    def scores(self, outputs: Tensor) -> Tensor:
        """Return the score of each class, with that of any object added."""
        found = self._found(outputs)
        if self.are_probabilities:
            found = found.clamp(CERTAIN, 1 - CERTAIN).logit()
        return found[:, 1:] + found[:, :1] if self.has_objectness else found

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probability of each class, times that of any object."""
        found = self._found(outputs)
        found = found if self.are_probabilities else found.sigmoid()
        return found[:, 1:] * found[:, :1] if self.has_objectness else found

    def _found(self, outputs: Tensor) -> Tensor:
        last = None if self.classes is None else 4 + self.has_objectness + self.classes
        return self._rows(outputs)[:, 4:last]

    def _rows(self, outputs: Tensor) -> Tensor:
        rows = outputs.reshape([size for size in outputs.shape if size > 1])
        return rows.T if self.is_transposed else rows


def grid_cells(grids: Sequence[tuple[int, int, int]], like: Tensor) -> tuple[Tensor, Tensor]:
    """Return x and y of each cell of some grids, (cells, 2), and its stride, (cells, 1)."""
    cells = [
        torch.cartesian_prod(torch.arange(height), torch.arange(width)).flip(1)
        for height, width, _ in grids
    ]
    strides = [torch.full((height * width, 1), stride) for height, width, stride in grids]
    return torch.cat(cells).to(like), torch.cat(strides).to(like)


@dataclass(frozen=True)
class QueryBoxes(BoxLayout):
    """Outputs of DETR: (queries, logits + 4), logits and then a box in shares of the image.

    Args:
        classes: How many classes there are. If there is one more logit, it stands for "no object"
            and probabilities add up to 1; otherwise each class has a probability of its own.
        is_ranked: Whether queries are the strongest places of an image, in their order. The same
            place then is another query of a changed image.
    """

    classes: int
    is_ranked: bool = False

    def corners(self, outputs: Tensor, size: tuple[int, ...]) -> Tensor:
        """Return the corners of every query's box."""
        boxes = outputs[:, -4:]
        scale = torch.tensor([size[1], size[0]]).to(boxes)
        middle, sides = boxes[:, :2] * scale, boxes[:, 2:] * scale
        return torch.cat([middle - sides / 2, middle + sides / 2], 1)

    def scores(self, outputs: Tensor) -> Tensor:
        """Return the logit of each class."""
        return outputs[:, : self.classes]

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probability of each class."""
        logits = outputs[:, :-4]
        found = logits.softmax(1) if logits.shape[1] > self.classes else logits.sigmoid()
        return found[:, : self.classes]

    def candidate(self, outputs: Tensor, box: FoundBox, size: tuple[int, ...]) -> int:
        """Return the query at the place of a box: the one that overlaps it most, if ranked."""
        if not self.is_ranked:
            return box.candidate
        corners = self.corners(outputs.detach(), size).cpu().float()
        return int(overlaps(torch.tensor(box.corners), corners).argmax())


@dataclass(frozen=True, eq=False)
class AnchorBoxes(BoxLayout):
    """Outputs of SSD and RetinaNet: (anchors, classes + 4), logits and then a box's offsets.

    Args:
        anchors: The corners of the anchors in pixels, (anchors, 4).
        weights: What the offsets of middle and sides are divided by.
        has_background: Whether class 0 is the background and probabilities add up to 1 (SSD);
            otherwise each class has a probability of its own (RetinaNet).
    """

    anchors: Tensor
    weights: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
    has_background: bool = False

    def corners(self, outputs: Tensor, size: tuple[int, ...]) -> Tensor:  # noqa: ARG002
        """Return the anchors, moved and scaled by their offsets."""
        anchors = self.anchors.to(outputs)
        sides = anchors[:, 2:] - anchors[:, :2]
        middle = anchors[:, :2] + sides / 2
        offsets = outputs[:, -4:] / torch.tensor(self.weights).to(outputs)
        middle = middle + offsets[:, :2] * sides
        sides = sides * offsets[:, 2:].exp()
        return torch.cat([middle - sides / 2, middle + sides / 2], 1)

    def scores(self, outputs: Tensor) -> Tensor:
        """Return the logit of each class."""
        return outputs[:, :-4]

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probability of each class; the background's is 0, so that it is no box."""
        logits = outputs[:, :-4]
        return _foreground(logits) if self.has_background else logits.sigmoid()


@dataclass(frozen=True)
class CornerBoxes(BoxLayout):
    """Outputs (anchors, logits + 4): logits and then left, top, right and bottom in pixels.

    Args:
        has_background: Whether class 0 is the background and probabilities add up to 1 (SSD);
            otherwise each class has a probability of its own (RetinaNet).
        has_centre: Whether there is one more logit, of being in the middle of the box (FCOS).
    """

    has_background: bool = False
    has_centre: bool = False

    def corners(self, outputs: Tensor, size: tuple[int, ...]) -> Tensor:
        """Return the corners of every anchor's box, inside the image."""
        sides = torch.tensor([size[1], size[0]] * 2).to(outputs)
        return outputs[:, -4:].clamp(min=0).minimum(sides)

    def scores(self, outputs: Tensor) -> Tensor:
        """Return the logit of each class, with that of the middle added."""
        if self.has_centre:
            return outputs[:, :-5] + outputs[:, -5:-4]
        return outputs[:, :-4]

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probability of each class; the background's is 0, so that it is no box."""
        if self.has_centre:
            return (outputs[:, :-5].sigmoid() * outputs[:, -5:-4].sigmoid()).sqrt()
        return _foreground(outputs[:, :-4]) if self.has_background else outputs[:, :-4].sigmoid()


def _foreground(logits: Tensor) -> Tensor:
    """Return probabilities that add up to 1 with that of class 0, the background, which is 0."""
    found = logits.softmax(1)
    return torch.cat([torch.zeros_like(found[:, :1]), found[:, 1:]], 1)


def layout_of(context: TargetContext) -> BoxLayout:
    """Return the layout that a detector's loader brought, or else that of YOLO.

    Raises:
        TargetError: If the outputs are not those of a detector.
    """
    return context.details.get(LAYOUT) or find_layout(context)


def is_detector(context: TargetContext) -> bool:
    """Return whether a model's outputs are boxes."""
    with suppress(TargetError):
        layout_of(context)
        return True
    return False


def boxes_in(context: TargetContext) -> list[FoundBox]:
    """List the boxes in one image's outputs, as `find_boxes` does."""
    return find_boxes(context.outputs, context.size, layout_of(context))


def find_layout(context: TargetContext) -> BoxLayout:
    """Recognise the outputs of YOLO by their shape.

    The number of candidates is that of the cells of three or four grids, one or three for each
    cell. Whether boxes are in pixels is seen from where they lie. Where there is a name for each
    number, the outputs are the steps of a sequence, such as a reader's.

    Raises:
        TargetError: If the outputs are not those of YOLO.
    """
    lengths = [size for size in context.outputs.shape if size > 1]
    names = None if context.classes is None else len(context.classes)
    if len(lengths) == 2 and len(context.size) == 2 and names not in lengths:
        for is_transposed in (False, True):
            candidates, numbers = lengths[::-1] if is_transposed else lengths
            for strides in STRIDES:
                grids = _grids(context.size, strides)
                cells = sum(height * width for height, width, _ in grids)
                if numbers > 4 and candidates in (cells, 3 * cells):
                    has_objectness = candidates == 3 * cells or not is_transposed
                    rest = None if names is None else numbers - 4 - names
                    if rest in (0, 1):
                        has_objectness = rest == 1
                    elif numbers == 5:
                        has_objectness = False
                    classes = names if rest is not None and rest > 1 else None
                    layout = YoloBoxes(grids, is_transposed, has_objectness, classes=classes)
                    return _decoded(layout, context)
    raise TargetError(
        "Box is for detectors such as YOLO, DETR, SSD and RetinaNet, but the model's outputs for "
        f"an image have shape {tuple(context.outputs.shape)}, which is none of their layouts"
    )


def _grids(size: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    return tuple((-(-size[0] // k), -(-size[1] // k), k) for k in strides)


def _decoded(layout: YoloBoxes, context: TargetContext) -> YoloBoxes:
    """Return a layout with what the outputs themselves show about boxes and scores."""
    rows = layout._rows(context.outputs).detach()
    scores = layout._found(context.outputs).detach()
    are_probabilities = bool((scores >= 0).all() and (scores <= 1).all())
    cells, strides = grid_cells(layout.grids, rows)
    is_decoded = True
    if len(cells) == len(rows):
        # A box lies near its own cell: decoded middles are pixels, others are offsets in cells.
        from_pixels = (rows[:, :2] / strides - cells - 0.5).abs().mean()
        from_offsets = (rows[:, :2] - 0.5).abs().mean()
        is_decoded = bool(from_pixels <= from_offsets)
    return replace(layout, is_decoded=is_decoded, are_probabilities=are_probabilities)
