"""A cell of a benchmark: one question to one method, known by all that determines its result.

    >>> cell = Cell("voc", "2008_000002", "9f2c…", "cat", "resnet50", "77ab…", "gradcam", {}, {})
    >>> len(cell.key), cell.key == replace(cell, method="dmbp").key
    (32, False)

Two runs, on two machines, of the same question have the same key; a change of the photo, of the
weights or of any setting makes another.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

__all__ = ["RESULTS", "Cell", "replace"]

RESULTS = 2
"""Raised whenever a method or a metric of ours comes to give other results."""


@dataclass(frozen=True)
class Cell:
    """What is asked: of which photo, about which class, of which model, by which method.

    `photo` and `weights` are digests of the files' contents. `settings` are the method's,
    `scoring` what it is scored by and how (metrics, steps, preprocessing).
    """

    dataset: str
    image: str
    photo: str
    target: str
    model: str
    weights: str
    method: str
    settings: Mapping[str, Any]
    scoring: Mapping[str, Any]

    @property
    def variant(self) -> tuple[str, str]:
        """The method and its settings."""
        return self.method, json.dumps(dict(self.settings), sort_keys=True)

    @cached_property
    def key(self) -> str:
        """A digest of all of it but the names of dataset and model, which decide nothing."""
        parts = {k: v for k, v in asdict(self).items() if k not in ("dataset", "model")}
        text = json.dumps({"results": RESULTS, **parts}, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:32]
