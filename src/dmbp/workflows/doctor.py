"""What `dmbp doctor` does: a model examined on a random image, on one screen or as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from dmbp import __version__
from dmbp.linear import Site
from dmbp.render.comparison import duration
from dmbp.workflows.examination import Examination, Peak, Refusal, examine
from dmbp.workflows.prediction import ModelChoice

FROZEN: Mapping[str, str] = {
    "affine": "itself",
    "gate": "slope and offset of every element",
    "smooth": "the tangent of every element",
    "product": "one factor, the other carries",
    "norm": "the deviation, the mean is linear",
    "choice": "the winner's index",
}
"""What is held at x, by the kind of rule (`linear/rules.py`)."""

FIRST, LAST = 3, 2
"""Sites, and modules of one fault, that are shown of many."""


@dataclass(frozen=True)
class Diagnosis:
    """An examination with the name of the model and of its weights."""

    model: str
    weights: str
    found: Examination

    def json(self) -> str:
        """All of it as JSON."""
        versions = {"dmbp": __version__, "torch": torch.__version__}
        about = {"model": self.model, "weights": self.weights, **self.found.record(), **versions}
        return json.dumps(about, indent=2, ensure_ascii=False)

    def show(self, console: Console, *, all_sites: bool = False) -> None:
        """Print it on one screen."""
        found = self.found
        shape = "×".join(str(size) for size in found.input)
        console.print(f"{self.model}: {self.weights} weights, {found.dtype} input {shape}\n")
        if found.refusal is not None:
            console.print(_told(found.refusal))
            return
        console.print(_rules(found.operations))
        if found.dropped:
            console.print(f"\nheld at the image, and so left out: {_counted(found.dropped)}")
        console.print()
        console.print(_sites(found.sites, all_sites=all_sites))
        console.print(f"\n{_verdict(found)}")


def diagnose(
    choice: ModelChoice, *, size: int | None = None, frozen: Mapping[str, Any] | None = None
) -> Diagnosis:
    """Examine a model on an image of noise; architectures without a file have random weights.

    `frozen` says how, by `smooth` and `sites`.
    """
    classifier = choice.load()
    side = size or classifier.preprocessing.crop
    channels = len(classifier.preprocessing.mean)
    noise = torch.randn(1, channels, side, side, generator=torch.Generator().manual_seed(0))
    found = examine(classifier.module, classifier.move_inputs(noise), **(frozen or {}))
    return Diagnosis(classifier.name, "random" if choice.is_random else "its own", found)


def _rules(operations: Mapping[str, Mapping[str, int]]) -> Table:
    table = _table("rule", "held at the image", "operations")
    for kind, names in operations.items():
        table.add_row(f"{kind} {sum(names.values())}", FROZEN[kind], _counted(names))
    return table


def _sites(sites: Sequence[Site], *, all_sites: bool) -> Table:
    table = _table(f"{len(sites)} sites", "operation", "shape")
    rows = [(site.name, site.operation, "×".join(map(str, site.shape))) for site in sites]
    if not all_sites and len(rows) > FIRST + LAST + 1:
        left_out = len(rows) - FIRST - LAST
        rows = [*rows[:FIRST], (f"… {left_out} more (--all-sites)", "", ""), *rows[-LAST:]]
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _table(*columns: str) -> Table:
    folded = [Column(name, overflow="fold") for name in columns]  # names are shown whole
    return Table(*folded, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def _verdict(found: Examination) -> str:
    lines = [
        f"exactness    {found.exactness:.1e} relative, {found.tolerance:.0e} allowed",
        f"capture      {duration(found.capture_seconds)}",
    ]
    if found.learning is None:
        return "\n".join([*lines, "no activation to put a mask on: the model is affine"])
    learned = found.learning
    return "\n".join(
        [
            *lines,
            f"engine       {learned.engine}: {learned.reason}",
            f"masks        {learned.mask_elements:,} elements, {_size(learned.mask_bytes)}",
            f"memory       {_peak(learned.memory)}",
            f"iteration    {duration(learned.seconds_an_iteration)}",
        ]
    )


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def _peak(memory: Peak | None) -> str:
    if memory is None:
        return "not measured on this system"
    return f"{_size(memory.bytes)} at the peak, beside the model: {memory.what}"


def _told(refusal: Refusal) -> str:
    if not refusal.operations:
        return f"cannot be explained: {refusal.message}"
    counted = len(refusal.operations)
    what = "an operation" if counted == 1 else f"{counted} operations"
    told = [f"cannot be explained: {what} of the model cannot be frozen at an input"]
    places: dict[tuple[str, str], list[str]] = {}
    for one in refusal.operations:
        place = one.module or "the top of the model"
        places.setdefault((one.operation, one.suggestion), []).append(place)
    for (operation, suggestion), modules in places.items():
        told += [
            f"\noperation    {operation}",
            f"{'module ' if len(modules) == 1 else 'modules'}      {_some(modules)}",
            f"suggestion   {suggestion}",
        ]
    return "\n".join(told)


def _some(names: Sequence[str]) -> str:
    """Names side by side, of many the first and the last."""
    if len(names) > FIRST + LAST + 1:
        names = [*names[:FIRST], f"… {len(names) - FIRST - LAST} more", *names[-LAST:]]
    return ", ".join(names)


def _counted(names: Mapping[str, int]) -> str:
    """`relu ×16, add`: operations by their short names, most frequent first."""
    short: dict[str, int] = {}
    for name, count in names.items():
        word = name.removeprefix("aten.").partition(".")[0]
        short[word] = short.get(word, 0) + count
    return ", ".join(f"{word} ×{count}" if count > 1 else word for word, count in short.items())
