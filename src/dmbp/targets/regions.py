"""`Region`: a part of a map of scores, such as a segmentation's.

    Region("cat")                         where the model predicts a cat
    Region("cat", box=(40, 30, 90, 120))  where it does in a box: left, top, right, bottom
    Region("cat", point=(64, 80))         the place of a pixel
    Region(mask=mask)                     where a mask is true

The score is the mean of a class's scores over the region, which is found once, in the whole image.
Outputs are (classes, height, width) or (height, width), of the input's size or smaller.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from dmbp.errors import TargetError
from dmbp.linear.named_target import BoundTarget, NamedTarget, Point, TargetContext, exact
from dmbp.probabilities import Activation

MAX_MASK = 4096 * 4096
"""The most pixels of a mask in a file or on the command line."""


@dataclass(frozen=True, eq=False)
class Region(NamedTarget):
    """A class in a region of a map of scores.

    Without a mask or point, the region is where the model predicts the class, in all of the image
    or in a box. It is found once and kept while pixels are removed. Whoever draws a box around
    something means what is in it, not the places between it and the box, whose scores are far below
    zero and would decide the mean. If the class is predicted nowhere in the box, the region is all
    of the box: then the question is why not.

    Args:
        subject: The class, by number or name. By default the class that is predicted most in the
            region. Without a mask or point, class 0 counts only if nothing else is predicted,
            because it is usually the background.
        mask: True or above 0 inside the region: (height, width) of the input or of the outputs. All
            of it counts, whatever is predicted there.
        box: Left, top, right and bottom, in pixels of the input.
        point: x and y of a pixel of the input.
    """

    subject: int | str | None = None
    mask: Any = None
    box: tuple[float, float, float, float] | None = None
    point: Point | None = None

    def __post_init__(self) -> None:
        if sum(value is not None for value in (self.mask, self.box, self.point)) > 1:
            raise TargetError("a Region takes a mask, a box or a point, not several of them")
        for name, count in (("box", 4), ("point", 2)):
            value: Any = getattr(self, name)
            if value is not None and not _are_numbers(value, count):
                raise TargetError(f"the {name} of a Region is {count} numbers, not {value!r}")

    def bind(self, context: TargetContext) -> BoundTarget:
        """Return the mean score over the region, for one image."""
        scores = score_maps(context)
        given = self._inside(context, scores)
        index = self._class(context, scores, given)
        inside = self._counted(context, scores, index, given)
        weights = torch.zeros_like(scores)
        weights[index] = inside.to(scores) / inside.sum()

        def probability(found: Tensor, activation: Activation | None) -> Tensor:
            maps = context.probabilities(found.view(scores.shape), 0, activation)
            return (maps * weights.to(found)).sum()

        is_part = given is not None and bool((inside != given).any())
        places = "the places in the box where it is predicted" if is_part else "the region"
        is_single = len(scores) == 1 and context.classes is None
        name = "the region" if is_single else context.class_name(index)
        where = self._where
        return BoundTarget(
            self,
            f"{name} {where}".strip(),
            weights=weights.view(context.outputs.shape),
            probability=probability,
            region=_resized(inside, context.size),
            score_words=f"the mean of the model's outputs for the class over {places}",
        )

    def _counted(
        self, context: TargetContext, scores: Tensor, index: int, given: Tensor | None
    ) -> Tensor:
        """Return the places that count: a given mask or point, or where the class is predicted."""
        if given is not None and self.box is None:
            return given
        predicted = predicted_classes(scores) == index
        predicted = predicted if given is None else predicted & given
        if predicted.any():
            return predicted
        if given is None:
            raise TargetError(
                f"the model predicts {context.class_name(index)} nowhere in this image: give the "
                "region as a box, a point or a mask"
            )
        return given

    def _class(self, context: TargetContext, scores: Tensor, inside: Tensor | None) -> int:
        if self.subject is not None:
            means = scores.flatten(1).mean(1) if inside is None else scores[:, inside].mean(1)
            return context.class_index(self.subject, len(scores), scores=means)
        if len(scores) == 1:
            return 0
        predicted = predicted_classes(scores)
        found = predicted.flatten() if inside is None else predicted[inside]
        counts = torch.bincount(found, minlength=len(scores))
        is_rough = inside is None or self.box is not None
        if is_rough and counts[1:].any():
            counts[0] = 0
        return int(counts.argmax())

    def _inside(self, context: TargetContext, scores: Tensor) -> Tensor | None:
        """Return the given region as a mask of the outputs' size, or None if none is given."""
        if self.mask is not None:
            return self._masked(context, scores)
        if self.box is None and self.point is None:
            return None
        height, width = scores.shape[1:]
        down, across = context.size or (height, width)
        left, top, right, bottom = self._corners(context)
        x, y = (
            (torch.arange(count, device=scores.device) + 0.5) * side / count
            for count, side in ((width, across), (height, down))
        )
        inside = ((y >= top) & (y < bottom))[:, None] & ((x >= left) & (x < right))
        if not inside.any():  # smaller than a place of the outputs, or outside the image
            middle_x, middle_y = (left + right) / 2, (top + bottom) / 2
            if not (0 <= middle_x < across and 0 <= middle_y < down):
                raise TargetError(
                    f"the region {self._where} lies outside the image, of {across:g}×{down:g} "
                    "pixels for the model"
                )
            inside[int(middle_y * height / down), int(middle_x * width / across)] = True
        return inside

    def _corners(self, context: TargetContext) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom in pixels of the model's input."""
        if self.point is not None:
            x, y = context.place(self.point)
            return x, y, x, y
        assert self.box is not None
        (left, top), (right, bottom) = context.place(self.box[:2]), context.place(self.box[2:])
        if left >= right or top >= bottom:
            raise TargetError(
                f"the box {_listed(self.box)} is empty: it has left, top, right and bottom"
            )
        return left, top, right, bottom

    def _masked(self, context: TargetContext, scores: Tensor) -> Tensor:
        mask = mask_tensor(self.mask)
        size = tuple(scores.shape[1:])
        place = context.details.get("place_mask")
        if place is not None:
            mask = place(mask)
        if tuple(mask.shape) not in (size, context.size):
            raise TargetError(
                f"the mask has shape {tuple(mask.shape)}, but the model's input has "
                f"{context.size} and its outputs have {size}"
            )
        resized = _resized(mask, size).to(scores.device)
        if not resized.any():
            raise TargetError("the mask is empty: it must be above 0 somewhere in the image")
        return resized

    @property
    def _where(self) -> str:
        if self.box is not None:
            return f"in the box {_listed(self.box)}"
        if self.point is not None:
            return f"at {_listed(self.point)}"
        return "in the mask" if self.mask is not None else ""

    @property
    def text(self) -> str:
        """Such as `region:cat@box=40,30,90,120`; a mask is packed and encoded as base64."""
        subject = "" if self.subject is None else self.subject
        places = {
            "box": None if self.box is None else ",".join(map(exact, self.box)),
            "point": None if self.point is None else ",".join(map(exact, self.point)),
            "mask": None if self.mask is None else _packed(mask_tensor(self.mask)),
        }
        where = [f"@{kind}={place}" for kind, place in places.items() if place is not None]
        return f"region:{subject}{''.join(where)}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Region) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def score_maps(context: TargetContext) -> Tensor:
    """Return the outputs as (classes, height, width)."""
    outputs = context.outputs
    while outputs.dim() > 3 and 1 in outputs.shape[:-2]:
        outputs = outputs.squeeze(list(outputs.shape[:-2]).index(1))
    outputs = outputs[None] if outputs.dim() == 2 else outputs
    if outputs.dim() != 3 or not _is_map(outputs.shape[1:], context.size):
        raise TargetError(
            "Region is for outputs (classes, height, width), but the model's outputs for an image "
            f"have shape {tuple(context.outputs.shape)}"
        )
    return outputs


MOST_STRETCHED = 1.5
"""How much a map may be stretched in one direction, compared with the input: a detector's boxes,
(values, anchors), are no map."""


def _is_map(shape: Sequence[int], size: Sequence[int]) -> bool:
    """Return whether a height and width can be those of a map over inputs of a size."""
    if min(shape) < 2:
        return False
    if len(size) != 2:
        return True
    stretch = shape[0] * size[1] / (shape[1] * size[0])
    return 1 / MOST_STRETCHED <= stretch <= MOST_STRETCHED


def predicted_classes(scores: Tensor) -> Tensor:
    """Return the class of each place; a single class is 0 where it is predicted, else −1."""
    return scores.argmax(0) if len(scores) > 1 else (scores[0] > 0).long() - 1


def _resized(mask: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return a mask in another size, by its nearest places; at least those that it marks remain."""
    if not size or tuple(mask.shape) == tuple(size):
        return mask
    if size[0] * size[1] < mask.numel():
        pooled = torch.nn.functional.adaptive_max_pool2d(mask[None, None].float(), size)
        return pooled[0, 0] > 0
    return torch.nn.functional.interpolate(mask[None, None].float(), size=size)[0, 0] > 0


def mask_tensor(mask: Any) -> Tensor:
    """Return a mask as a tensor (height, width) of truth values.

    Raises:
        TargetError: If it has another shape.
    """
    tensor = torch.as_tensor(numpy.asarray(mask) if not isinstance(mask, Tensor) else mask)
    tensor = tensor.squeeze()
    if tensor.dim() != 2 or tensor.is_complex():
        raise TargetError(f"a mask has shape (height, width), not {tuple(tensor.shape)}")
    return tensor > 0


def _packed(mask: Tensor) -> str:
    bits = numpy.packbits(mask.cpu().numpy())
    height, width = mask.shape
    return f"{height}x{width}:{base64.b64encode(zlib.compress(bits.tobytes(), 9)).decode()}"


def is_packed_mask(text: str) -> bool:
    """Return whether a text holds a mask itself, as `Region.text` writes it."""
    return re.match(r"\d{1,5}x\d{1,5}:", text) is not None


def unpacked_mask(text: str) -> Tensor:
    """Return the mask that `Region.text` has packed.

    Raises:
        TargetError: If the text is not a packed mask.
    """
    sizes, _, packed = text.partition(":")
    found = re.fullmatch(r"(\d{1,5})x(\d{1,5})", sizes)
    try:
        if found is None or int(found[1]) * int(found[2]) > MAX_MASK:
            raise ValueError(sizes)
        count = int(found[1]) * int(found[2])
        unpack = zlib.decompressobj()
        bits = unpack.decompress(base64.b64decode(packed, validate=True), (count + 7) // 8)
        pixels = numpy.unpackbits(numpy.frombuffer(bits, dtype=numpy.uint8), count=count)
        return torch.from_numpy(pixels.reshape(int(found[1]), int(found[2])) > 0)
    except (ValueError, zlib.error) as error:
        raise TargetError("the mask of a region is damaged, or not one that dmbp wrote") from error


def _are_numbers(values: Any, count: int) -> bool:
    try:
        return len(values) == count and all(abs(float(value)) < 1e9 for value in values)
    except (TypeError, ValueError):
        return False


def _listed(numbers: Any) -> str:
    return ",".join(f"{float(number):g}" for number in numbers)
