"""Reads the items of a dataset, one after another: an input and perhaps a label for each.

Datasets, `DataLoader`s and other iterables give samples: a tensor, a pair of input and label, or a
dictionary. An `ItemStream` reads them in groups, and leaves out those groups that are done already
where the data allow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import Any, cast

import numpy
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
)
from torch.utils.data.dataloader import default_collate

from dmbp.errors import InputError
from dmbp.workflows.datasets.folder import Records, tensor_digest

INPUT_KEYS = ("pixel_values", "image", "images", "img", "input", "inputs", "x")
LABEL_KEYS = ("label", "labels", "target", "targets", "class", "y")
"""What the entries of a sample that is a dictionary are called, the first that there is."""

Data = Dataset[Any] | DataLoader[Any] | Iterable[Any]


LABEL, PREDICTED = "label", "predicted"
"""The targets that depend on the item."""


@dataclass(frozen=True)
class Item:
    """An item as it is read: its position, the model's input and the label, if it has one."""

    index: int
    input: Tensor
    label: Any


@dataclass(frozen=True)
class Group:
    """Consecutive items: the index of the first, and the items, or their records if it is done."""

    first: int
    items: list[Item]
    records: Records | None = None


FindRecords = Callable[[int, int], "Records | None"]
"""Returns the records of a group, given its first item and its number of items, if it is done."""


class ItemStream:
    """The items of a dataset, in their order, in groups.

    Attributes:
        length: How many items there are, None if that is not known beforehand.
    """

    def __init__(self, data: Any) -> None:
        self._data = data
        self._loader = data if isinstance(data, DataLoader) else None
        source: Any = data if self._loader is None else self._loader.dataset
        is_stream = isinstance(source, IterableDataset) or not hasattr(source, "__getitem__")
        self._source: Any = None if is_stream else source
        is_iterable = isinstance(data, Iterable) or self._source is not None
        if not is_iterable or isinstance(data, Tensor | nn.Module | str | Mapping):
            hint = "; put a tensor into a torch.utils.data.TensorDataset"
            raise InputError(
                "data must be a Dataset, a DataLoader or an iterable of samples, not of type "
                f"{type(data).__name__}{hint if isinstance(data, Tensor) else ''}"
            )
        self.length = self._count()

    def _count(self) -> int | None:
        """Return how many items there are, as far as that can be known."""
        if self._source is None or not isinstance(self._source, Sized):
            return None
        loader, count = self._loader, len(self._source)
        if loader is None:
            return count
        if not self._is_sequential:  # a sampler may choose some of them
            return None
        size = loader.batch_size
        return count // size * size if loader.drop_last and size else count

    @property
    def _is_sequential(self) -> bool:
        """Whether a loader reads a dataset from its first item to its last."""
        loader = self._loader
        if loader is None or self._source is None:
            return True
        batches: Any = loader.batch_sampler
        plain = batches is None or type(batches) is BatchSampler
        return plain and isinstance(loader.sampler, SequentialSampler)

    def check_order(self) -> None:
        """Raise an `InputError` if the items come in an order that the next run cannot repeat."""
        if not self._is_sequential:
            raise InputError(
                "a DataLoader that shuffles, or has a sampler of its own, gives items in an order "
                "that a later run cannot continue: leave out folder, or use shuffle=False"
            )

    def described(self) -> dict[str, Any]:
        """Return how many items there are, and digests of the first and the last."""
        if self._source is None or not self.length:
            return {"items": None}
        ends = {"first item": 0, "last item": self.length - 1}
        return {"items": self.length, **{k: _item_digest(self._item(v)) for k, v in ends.items()}}

    def groups(self, size: int, find_done: FindRecords) -> Iterator[Group]:
        """Yield all groups of `size` items; items of those that are done are not read if possible.

        Raises:
            InputError: If a sample cannot be used, or a loader leaves some out.
        """
        if self._source is None or self.length is None:
            yield from self._groups_of_stream(size, find_done)
            return
        length = self.length
        counts = {first: min(size, length - first) for first in range(0, length, size)}
        done = {first: find_done(first, count) for first, count in counts.items()}
        missing = [first + k for first, n in counts.items() if not done[first] for k in range(n)]
        items = self._read(missing)
        for first, count in counts.items():
            if records := done[first]:
                yield Group(first, [], records)
                continue
            group = list(islice(items, count))
            if len(group) != count:
                raise InputError(
                    f"the DataLoader gives {len(group)} of the {count} items from item {first} on: "
                    "its collate_fn must leave none out"
                )
            yield Group(first, group)

    def _groups_of_stream(self, size: int, find_done: FindRecords) -> Iterator[Group]:
        samples: Iterable[Any] = self._data if self._loader is None else _unbatched(self._loader)
        items = (_item(k, sample) for k, sample in enumerate(samples))
        first = 0
        while group := list(islice(items, size)):
            yield Group(first, group, find_done(first, len(group)))
            first += len(group)

    def _read(self, indices: Sequence[int]) -> Iterator[Item]:
        """Yield the items at these indices; a loader's workers read them."""
        loader = self._loader
        if loader is None:
            yield from map(self._item, indices)
            return
        if len(indices) < (self.length or 0):
            loader = _loader_of(loader, indices)
        for index, sample in zip(indices, _unbatched(loader), strict=False):
            yield _item(index, sample)

    def _item(self, index: int) -> Item:
        return _item(index, self._source[index])


def _loader_of(loader: DataLoader[Any], indices: Sequence[int]) -> DataLoader[Any]:
    """Return a loader like another that reads only some items."""
    names = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator")
    same: dict[str, Any] = {name: getattr(loader, name) for name in names}
    if loader.num_workers:
        same["multiprocessing_context"] = loader.multiprocessing_context
        same["prefetch_factor"] = loader.prefetch_factor
    return DataLoader(Subset(loader.dataset, indices), batch_size=loader.batch_size, **same)


def _unbatched(loader: DataLoader[Any]) -> Iterator[Any]:
    """Yield the samples of a loader's batches."""
    is_batched = loader.batch_sampler is not None or (
        isinstance(loader.dataset, IterableDataset) and loader.batch_size is not None
    )
    for batch in loader:
        if is_batched:
            yield from _split(batch, has_columns=loader.collate_fn is default_collate)
        else:
            yield batch


def _split(batch: Any, *, has_columns: bool) -> Iterator[Any]:
    """Yield the samples of a batch: a tensor, a dictionary, inputs and labels, or a list.

    Args:
        batch: What a loader gives.
        has_columns: Whether a sequence surely holds all inputs, then all labels.
    """
    if isinstance(batch, Mapping):
        named = cast("Mapping[Any, Sequence[Any]]", batch)
        columns = [list(value) for value in named.values()]
        yield from (dict(zip(named, row, strict=True)) for row in zip(*columns, strict=True))
    elif isinstance(batch, list | tuple) and (
        has_columns or _are_inputs_and_labels(cast("Sequence[Any]", batch))
    ):
        columns = [list(part) for part in cast("Sequence[Any]", batch)]
        yield from zip(*columns, strict=True)
    else:
        yield from batch


def _are_inputs_and_labels(batch: Sequence[Any]) -> bool:
    """Return whether a custom batch is a tensor of inputs, perhaps with as many labels."""
    inputs = batch[0] if len(batch) in (1, 2) else None
    if not isinstance(inputs, Tensor) or inputs.dim() < 2:
        return False
    if len(batch) == 1:
        return True
    labels = batch[1]
    is_list = isinstance(labels, list | tuple) or (isinstance(labels, Tensor) and labels.dim() == 1)
    return is_list and len(labels) == len(inputs)


def _item(index: int, sample: Any) -> Item:
    """Read a sample: a tensor, a pair of input and label, or a dictionary."""
    label: Any = None
    value = sample
    if isinstance(sample, Mapping):
        named = cast("Mapping[Any, Any]", sample)
        found = next((key for key in INPUT_KEYS if key in named), None)
        if found is None:
            keys = ", ".join(repr(key) for key in list(named)[:8])
            raise InputError(
                f"item {index} is a dictionary without an input: it has {keys}, and none of "
                f"{', '.join(INPUT_KEYS)}; wrap the dataset to return (input, label)"
            )
        value = named[found]
        label = next((named[key] for key in LABEL_KEYS if key in named), None)
    elif isinstance(sample, list | tuple):
        parts = cast("Sequence[Any]", sample)
        if len(parts) not in (1, 2):
            raise InputError(
                f"item {index} has {len(parts)} parts; wrap the dataset to return an input, or "
                "(input, label)"
            )
        value, label = parts[0], parts[1] if len(parts) == 2 else None
    if isinstance(value, numpy.ndarray):
        value = torch.from_numpy(value)
    if not isinstance(value, Tensor):
        raise InputError(
            f"item {index}: its input is of type {type(value).__name__}, not a tensor; give the "
            "dataset a transform that returns what the model takes"
        )
    return Item(index, value, label)


def class_label(item: Item, target: Any) -> int | None:
    """Return an item's label as a class's number, or None if it is not needed or there is none."""
    label = item.label
    is_needed = target is None or (isinstance(target, str) and target == LABEL)
    if label is None:
        if is_needed and target is not None:
            raise InputError(f"item {item.index} has no label; use target='predicted'")
        return None
    if isinstance(label, numpy.ndarray | numpy.generic):
        label = torch.as_tensor(label)
    shape = ""
    if isinstance(label, Tensor):
        shape = f" of shape {tuple(label.shape)}"
        label = label.item() if label.numel() == 1 else label
    if isinstance(label, int) and not isinstance(label, bool):
        return label
    if not is_needed:
        return None
    what = f"{type(label).__name__}{shape or f' {label!r:.40}'}"
    raise InputError(
        f"item {item.index}: its label is not a class's number but a {what}; use "
        "target='predicted', or pass what to explain as target"
    )


def _item_digest(item: Item) -> str:
    label = item.label.tolist() if isinstance(item.label, Tensor) else item.label
    return sha256(f"{tensor_digest(item.input)} {label}".encode()).hexdigest()[:16]
