"""Inputs beside the one that is explained; they are held as they are.

    >>> held = Held.of((torch.ones(3, 4), 0.5), images=3)
    >>> held.pick([2]).beside(5)[0].shape                  # as many as there are images
    torch.Size([5, 4])

A tensor whose first dimension counts the images is read image by image, as in Captum, unless the
model's outputs say that it means something else by it; everything else goes to the model as it is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, cast

from torch import Tensor


@dataclass(frozen=True)
class Held:
    """The model's further arguments; those at the places `by_image` hold a row for each image."""

    values: tuple[Any, ...] = ()
    by_image: frozenset[int] = frozenset()

    @classmethod
    def of(cls, given: Any, *, images: int) -> "Held":
        """What Captum allows for `additional_forward_args`: nothing, one thing, or a tuple."""
        if given is None:
            return cls()
        values = cast("tuple[Any, ...]", given) if isinstance(given, tuple) else (given,)
        values = tuple(v.detach() if isinstance(v, Tensor) else v for v in values)
        return cls(values, frozenset(k for k, v in enumerate(values) if _counts(v, images)))

    @property
    def tensors(self) -> tuple[int, ...]:
        """The places of all tensors."""
        return tuple(k for k, value in enumerate(self.values) if isinstance(value, Tensor))

    @property
    def form(self) -> Any:
        """What a graph captured with these depends on."""
        return tuple(
            (tuple(value.shape[1 if k in self.by_image else 0 :]), value.dtype)
            if isinstance(value, Tensor)
            else repr(value)
            for k, value in enumerate(self.values)
        )

    def readings(self) -> Iterator["Held"]:
        """Those tensors image by image or as they are, in every way there is, the fewest last."""
        for count in range(len(self.by_image), -1, -1):
            for places in combinations(sorted(self.by_image), count):
                yield replace(self, by_image=frozenset(places))

    def pick(self, images: Sequence[int]) -> "Held":
        """The same for some of the images."""
        return self._with({k: self.values[k][list(images)] for k in self.by_image})

    def beside(self, count: int) -> tuple[Any, ...]:
        """The arguments for `count` images, which are all those held or copies of a single one."""
        return self._with({k: _copied(self.values[k], count) for k in self.by_image}).values

    def filled(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """The arguments with other tensors in place of these."""
        return self._with(dict(zip(self.tensors, tensors, strict=True))).values

    def _with(self, others: dict[int, Any]) -> "Held":
        return replace(self, values=tuple(others.get(k, v) for k, v in enumerate(self.values)))


def _counts(value: Any, images: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == images


def _copied(value: Tensor, count: int) -> Tensor:
    return value if len(value) == count else value.expand(count, *value.shape[1:]).contiguous()
