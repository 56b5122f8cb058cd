"""Batches that fit into memory: an estimate first, then half as many rows each time it fails."""

import gc
import operator
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from dmbp.errors import InputError
from dmbp.linear import Question

BatchSize = int | Literal["auto"] | None
"""How many images to run at once; "auto" (also None) takes as many as fit and are worth it."""

SHARE = 0.8
"""The share of free memory to fill; the rest is for what the estimate leaves out."""

Answer = TypeVar("Answer")


def parse_batch_size(size: Any) -> int | None:
    """Return a batch size as a number, or None for "auto"."""
    if size is None or (isinstance(size, str) and size == "auto"):
        return None
    try:
        number = 0 if isinstance(size, bool | str) else operator.index(size)
    except TypeError:
        number = 0
    if number < 1:
        raise InputError(f"internal_batch_size must be 1 or more, or 'auto', not {size!r}")
    return number


def rows_that_fit(bytes_a_row: int, device: torch.device, *, most: int) -> int:
    """Return how many rows fit into a GPU's free memory, at most `most`."""
    free, _ = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(1, min(most, int(SHARE * (free + kept)) // bytes_a_row))


def run_with_oom_retry(
    questions: Iterable[Question], answer: Callable[[Question], Answer]
) -> Iterator[Answer]:
    """Yield the answer to each question; if memory runs out, split it and all that follow."""
    limit: int | None = None
    for question in questions:
        waiting = deque([question])
        while waiting:
            part = waiting.popleft()
            if limit is not None and part.batch_size > limit:
                waiting.extendleft(reversed(part.split(limit)))
                continue
            try:
                found = answer(part)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not _is_out_of_memory(error):
                    raise
                limit = _half(part)
                waiting.appendleft(part)
                found = None
            if found is None:
                _release(part.inputs)
            else:
                yield found


def _half(part: Question) -> int:
    at_once = max(len(part.rows), part.batch_size)
    if at_once == 1:
        raise InputError(
            "not even a single image fits into memory; use smaller images or a smaller model"
        ) from None
    half = at_once // 2
    warnings.warn(f"{at_once} images at once do not fit into memory; continuing with {half}",
                  stacklevel=2)  # fmt: skip
    return half


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, torch.OutOfMemoryError):
        return True
    text = str(error)
    return "can't allocate memory" in text or "CUBLAS_STATUS_ALLOC_FAILED" in text


def _release(like: Tensor) -> None:
    gc.collect()
    if like.is_cuda:
        torch.cuda.empty_cache()
