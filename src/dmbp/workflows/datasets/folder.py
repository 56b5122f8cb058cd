"""The folder that explanations of a dataset are kept in, so that a later run continues it.

    run.json                  what determines the results: model, settings, data, items per group
    00000000.safetensors      the attributions of a group of consecutive items, with their records
    00000008.safetensors      …
    results.jsonl             the records of all items, a line for each

A group's file is written under another name and renamed when it is complete, so a run that is
killed leaves whole groups. The next run computes the groups that are missing. Groups begin at the
same items in every run: a batch of other items would change results by rounding.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dmbp.errors import InputError, OutputError
from dmbp.files import reason, shown, write_all_or_none

FORMAT = "dmbp.dataset/1"

RUN, RESULTS, SHARD = "run.json", "results.jsonl", ".safetensors"

DIGEST = 16
"""The length of digests."""

Records = Sequence[Mapping[str, Any]]

LABELS: Mapping[str, str] = {
    "model": "of another model (its weights, settings or code differ)",
    "settings": "with other settings",
    "target": "of other targets",
    "data": "of other data, or of data that change whenever they are read",
    "dmbp": "of another version of dmbp",
    "batch_size": "in groups of another size",
}
"""What a difference between two runs is called, in the order in which it is looked for."""


class DatasetFolder:
    """A folder with the explanations of one dataset.

    Args:
        path: The folder; it is created if it does not exist.
        run: What determines the results, as plain values, with the keys of `LABELS`.

    Raises:
        InputError: If the folder holds something else, or results of another run.
        OutputError: If it cannot be written.
    """

    def __init__(self, path: Path, run: Mapping[str, Any]) -> None:
        self.path = path
        run = {"format": FORMAT, **run}
        found = _read_run(path)
        if found is None:
            text = json.dumps(run, indent=2, ensure_ascii=False)
            write_all_or_none({path / RUN: f"{text}\n".encode()})
        else:
            _check_same(path, found, json.loads(json.dumps(run)))
        self._records: dict[int, Records] = {}
        for file in sorted(path.glob(f"*{SHARD}")):
            if file.stem.isdecimal() and (records := _read_records(file)) is not None:
                self._records[int(file.stem)] = records
        self._repair_results()

    def records(self, first: int, count: int | None = None) -> Records | None:
        """Return the records of the group that begins at an item, or None if it is missing.

        Args:
            first: The index of the group's first item.
            count: How many items the group has; one with more or fewer counts as missing.
        """
        records = self._records.get(first)
        return records if records is not None and count in (None, len(records)) else None

    def attributions(self, first: int) -> list[Tensor]:
        """Return the attributions of the group that begins at an item."""
        with safe_open(str(self._shard(first)), framework="pt") as file:
            return [file.get_tensor(f"attribution.{k}") for k in range(len(self._records[first]))]

    def write(self, first: int, records: Records, attributions: Sequence[Tensor]) -> None:
        """Write a group's file, then the lines of its records."""
        tensors = {f"attribution.{k}": tensor for k, tensor in enumerate(attributions)}
        metadata = {"format": FORMAT, "records": json.dumps(list(records))}
        write_all_or_none({self._shard(first): save(tensors, metadata)})
        self._records[first] = records
        try:
            with (self.path / RESULTS).open("ab") as file:
                file.write(_lines(records))
        except OSError as error:
            where = shown(self.path / RESULTS)
            raise OutputError(f"cannot write to {where}: {reason(error)}") from error

    def _shard(self, first: int) -> Path:
        return self.path / f"{first:08}{SHARD}"

    def _repair_results(self) -> None:
        """Write the lines again if they are not those of the groups that there are."""
        expected = b"".join(_lines(self._records[first]) for first in sorted(self._records))
        content = b""
        with suppress(FileNotFoundError):
            content = (self.path / RESULTS).read_bytes()
        if sorted(content.splitlines()) != sorted(expected.splitlines()):
            write_all_or_none({self.path / RESULTS: expected})


def read_records(path: str | Path) -> list[dict[str, Any]]:
    """Return the records in a folder of `explain_dataset`, in the order of the items.

    Args:
        path: The folder.

    Returns:
        A dictionary of plain values for each item, without its attribution.

    Raises:
        InputError: If the folder holds no results of `explain_dataset`.
    """
    folder = Path(path)
    if _read_run(folder) is None:
        raise InputError(f"{shown(folder)} holds no results of explain_dataset")
    read = [_read_records(file) for file in sorted(folder.glob(f"*{SHARD}"))]
    return [dict(record) for records in read if records is not None for record in records]


def _lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    return "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace")


def _read_run(path: Path) -> dict[str, Any] | None:
    """Return what determined the results in a folder, or None if it is empty or does not exist."""
    try:
        content = (path / RUN).read_bytes()
    except FileNotFoundError:
        if path.is_dir() and os.listdir(path):
            raise InputError(
                f"{shown(path)} is not empty and holds no results of explain_dataset; choose "
                "another folder"
            ) from None
        return None
    except OSError as error:
        raise InputError(f"{shown(path / RUN)} cannot be read: {reason(error)}") from error
    try:
        found: Any = json.loads(content)
        is_ours = isinstance(found, dict) and found.get("format") == FORMAT
    except ValueError:
        found, is_ours = None, False
    if not is_ours:
        raise InputError(f"{shown(path / RUN)} is not a file of explain_dataset, or is damaged")
    return found


def _check_same(path: Path, found: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    for key, what in LABELS.items():
        if found.get(key) != run.get(key):
            raise InputError(
                f"{shown(path)} holds results {what}{_difference(found.get(key), run.get(key))}; "
                "choose another folder, or delete this one to begin again"
            )


def _difference(before: Any, now: Any) -> str:
    """Return how two values differ, if that is short to say."""
    if isinstance(before, dict) and isinstance(now, dict):
        changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        pairs = [(key, before.get(key), now.get(key)) for key in changed]
        texts = [f"{key} was {old!r:.40} and is {new!r:.40}" for key, old, new in pairs[:3]]
        return f" ({', '.join(texts)})"
    is_digest = isinstance(now, str) and len(now) == DIGEST
    return "" if is_digest else f" ({before!r:.60}, now {now!r:.60})"


def _read_records(file: Path) -> Records | None:
    """Return the records in a group's file, or None if the file is damaged."""
    try:
        with safe_open(str(file), framework="pt") as opened:
            metadata: dict[str, str] = opened.metadata() or {}
            count = len(list(opened.keys()))
        records: Any = json.loads(metadata["records"])
        is_whole = metadata.get("format") == FORMAT and len(records) == count
        return records if is_whole else None
    except (OSError, SafetensorError, KeyError, ValueError, TypeError):
        return None


def on_cpu(attributions: Tensor) -> list[Tensor]:
    """Return each row's attribution on the CPU, as a tensor of its own."""
    rows = attributions.detach().to("cpu").unbind(0)
    return [row.clone(memory_format=torch.contiguous_format) for row in rows]


def tensor_digest(tensor: Tensor) -> str:
    """Return a digest of a tensor's shape, dtype and values."""
    digest = sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:DIGEST]
