"""`dmbp doctor`: examines a model on an input, and shows the result as text or JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

import torch
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from torch import Tensor

from dmbp import __version__
from dmbp.data import sample_photos
from dmbp.errors import DMBPError, one_line
from dmbp.linear import Site
from dmbp.models import Classifier, Preprocessing
from dmbp.models.classifier import LETTERBOXES, format_size
from dmbp.render.comparison import format_duration
from dmbp.workflows.examination import Examination, Peak, Refusal, examine
from dmbp.workflows.explained_target import NamedClass
from dmbp.workflows.input_shape import example_shape, takes_photos
from dmbp.workflows.prediction import run_on_photo

FROZEN: Mapping[str, str] = {
    "affine": "nothing, it is affine",
    "gate": "slope and offset of every element",
    "smooth": "the tangent of every element",
    "product": "one of the two factors",
    "norm": "the deviation; the mean is linear",
    "choice": "the winner's index",
}
"""What is frozen at x, by the kind of rule (`linear/rules/`)."""

FIRST_SHOWN, LAST_SHOWN = 3, 2
"""How many entries are shown from the start and the end of a long list."""


SAMPLE = "cat"
"""The sample photo that the model is shown."""

TOP_SHOWN = 3
"""How many classes are shown of what the model says about the sample photo."""

OWN = "the model's own"
"""The origin of a setting that came with the model."""


@dataclass(frozen=True)
class PhotoCheck:
    """How photos are prepared for a model, and what it says about a sample photo.

    `origins` says where each setting came from. `top` are the most probable classes of the sample
    photo; if it is empty, `why_not` says why, or what the model says instead.
    """

    preprocessing: Preprocessing
    origins: Mapping[str, str]
    top: Sequence[NamedClass] = ()
    why_not: str = ""

    def record(self) -> dict[str, Any]:
        """Return the check as plain values."""
        return {
            "preprocessing": self.preprocessing.as_dict(),
            "origins": dict(self.origins),
            "sample": {SAMPLE: [one.record() for one in self.top]} if self.top else None,
        }

    def rows(self) -> list[tuple[str, str, str]]:
        """Return each setting's name, value and origin."""
        seen = self.preprocessing
        is_resized = seen.fit in ("crop", "squeeze-crop")
        resized = f", of a photo resized to {format_size(seen.resize)}" if is_resized else ""
        if seen.fit == "whole" and seen.longest is not None:
            resized = f", the long side at most {seen.longest}"
        if seen.fit == "whole" and seen.multiple > 1:
            resized += f", sides in multiples of {seen.multiple}"
        if seen.fit in LETTERBOXES:
            resized = f", padded with grey {seen.padding} of 255"
        values = {
            "size": f"{format_size(seen.crop)} (height×width)",
            "fit": f"{seen.fit}{resized}",
            "mean": ", ".join(f"{value:.4g}" for value in seen.mean),
            "std": ", ".join(f"{value:.4g}" for value in seen.std),
            "scale": f"pixels from 0 to {seen.scale:g}",
            "channels": str(seen.as_dict()["channels"]),
            "interpolation": str(seen.as_dict()["interpolation"]),
        }
        return [(name, value, self.origins.get(name, OWN)) for name, value in values.items()]

    def sample_text(self) -> str:
        """Return what the model says about the sample photo, in words."""
        said = ", ".join(one.label(decimals=1) for one in self.top) or self.why_not
        return f"sample photo, a {SAMPLE}: {said}"


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """An examination, with the name of the model, the kind of its weights, and its photos."""

    model: str
    weights: str
    examination: Examination
    photos: PhotoCheck | None = None

    def __repr__(self) -> str:
        """Return what `dmbp doctor` prints."""
        console = Console(file=StringIO(), width=100, highlight=False, emoji=False)
        self.show(console)
        return console.file.getvalue().rstrip()  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def can_be_explained(self) -> bool:
        """Whether dmbp can explain the model."""
        return self.examination.refusal is None

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as plain values."""
        versions = {"dmbp": __version__, "torch": torch.__version__}
        return {
            "model": self.model,
            "weights": self.weights,
            **({} if self.photos is None else self.photos.record()),
            **self.examination.record(),
            **versions,
        }

    def json(self) -> str:
        """Return the diagnosis as JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    def show(self, console: Console | None = None, *, all_sites: bool = False) -> None:
        """Print the diagnosis.

        Args:
            console: Where to print it; by default the terminal.
            all_sites: Whether a long list of sites is printed whole; else it is cut in the middle.
        """
        console = console or Console(highlight=False, emoji=False)
        examination = self.examination
        shape = "×".join(str(size) for size in examination.input)
        console.print(f"{self.model}: {self.weights} weights, {examination.dtype} input {shape}")
        if examination.target is not None:
            outputs = "×".join(map(str, examination.output))
            console.print(
                f"outputs of {outputs}, of which the largest, {examination.target}, is taken"
            )
        console.print()
        if self.photos is not None:
            console.print(_photos_table(self.photos))
            console.print(f"\n{self.photos.sample_text()}\n")
        if examination.refusal is not None:
            console.print(_refusal_text(examination.refusal))
            return
        console.print(_rules_table(examination.operations))
        if examination.dropped:
            console.print(f"\nfrozen at the image, so left out: {_count_text(examination.dropped)}")
        console.print()
        console.print(_sites_table(examination.sites, all_sites=all_sites))
        console.print(f"\n{_cost_text(examination)}")


def diagnose(
    classifier: Classifier,
    *,
    inputs: Tensor | None = None,
    freezing: Mapping[str, Any] | None = None,
    has_random_weights: bool = False,
) -> Diagnosis:
    """Show a model a sample photo, and examine it on an input.

    Args:
        classifier: The model.
        inputs: A batch of one input; by default noise of a size that suits the model.
        freezing: `smooth` and `sites`, as for `dmbp.linearize`.
        has_random_weights: Whether the model's weights are random.
    """
    if inputs is None:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(1, *example_shape(classifier), generator=generator)
    examination = examine(classifier.module, classifier.move_inputs(inputs), **(freezing or {}))
    return Diagnosis(
        classifier.name,
        "random" if has_random_weights else "its own",
        examination,
        _check_photos(classifier, has_random_weights=has_random_weights),
    )


def _check_photos(classifier: Classifier, *, has_random_weights: bool) -> PhotoCheck | None:
    if not takes_photos(classifier):
        return None
    preprocessing, origins = classifier.preprocessing, classifier.origins
    if has_random_weights:
        return PhotoCheck(preprocessing, origins, why_not="not shown, the weights are random")
    try:
        photo, _ = sample_photos()[SAMPLE]
        prediction = run_on_photo(photo, SAMPLE, classifier)
    except DMBPError as error:  # scikit-image is missing, or the model does not run
        return PhotoCheck(preprocessing, origins, why_not=one_line(error))
    if not prediction.gives_classes:
        return PhotoCheck(preprocessing, origins, why_not=prediction.verdict(decimals=1))
    best = prediction.outputs.argsort(descending=True)[:TOP_SHOWN].tolist()
    top = [NamedClass.of(prediction.classifier, prediction.outputs, index) for index in best]
    return PhotoCheck(preprocessing, origins, top)


def _photos_table(photos: PhotoCheck) -> Table:
    table = _table("photos", "", "from")
    for row in photos.rows():
        table.add_row(*(Text(cell) for cell in row))
    return table


def _rules_table(operations: Mapping[str, Mapping[str, int]]) -> Table:
    table = _table("rule", "frozen at the image", "operations")
    for kind, names in operations.items():
        table.add_row(f"{kind} {sum(names.values())}", FROZEN[kind], _count_text(names))
    return table


def _sites_table(sites: Sequence[Site], *, all_sites: bool) -> Table:
    table = _table(f"{len(sites)} sites", "operation", "shape")
    rows = [(site.name, site.operation, "×".join(map(str, site.shape))) for site in sites]
    if not all_sites and len(rows) > FIRST_SHOWN + LAST_SHOWN + 1:
        left_out = len(rows) - FIRST_SHOWN - LAST_SHOWN
        rows = [
            *rows[:FIRST_SHOWN],
            (f"… {left_out} more (--all-sites)", "", ""),
            *rows[-LAST_SHOWN:],
        ]
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _table(*columns: str) -> Table:
    folded = [Column(name, overflow="fold") for name in columns]  # long names wrap
    return Table(*folded, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def _cost_text(examination: Examination) -> str:
    lines = [
        f"exactness    {examination.exactness:.1e} relative, {examination.tolerance:.0e} allowed",
        f"capture      {format_duration(examination.capture_seconds)}",
    ]
    if examination.learning is None:
        return "\n".join([*lines, "no activation carries a mask: the model is affine"])
    cost = examination.learning
    return "\n".join(
        [
            *lines,
            f"engine       {cost.engine}: {cost.reason}",
            f"masks        {cost.mask_elements:,} elements, {_mebibytes(cost.mask_bytes)}",
            f"memory       {_peak_text(cost.memory)}",
            f"iteration    {format_duration(cost.seconds_an_iteration)}",
        ]
    )


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def _peak_text(memory: Peak | None) -> str:
    if memory is None:
        return "not measured on this system"
    return f"{_mebibytes(memory.bytes)} at the peak, on top of the model: {memory.what}"


def _refusal_text(refusal: Refusal) -> str:
    """Return a text that lists each unsupported operation once, with its modules and a fix."""
    if not refusal.operations:
        return f"cannot be explained: {refusal.message}"
    count = len(refusal.operations)
    what = "an operation" if count == 1 else f"{count} operations"
    lines = [f"cannot be explained: {what} of the model cannot be frozen at an input"]
    modules_of: dict[tuple[str, str], list[str]] = {}
    for refused in refusal.operations:
        module = refused.module or "the top of the model"
        modules_of.setdefault((refused.operation, refused.suggestion), []).append(module)
    for (operation, suggestion), modules in modules_of.items():
        lines += [
            f"\noperation    {operation}",
            f"{'module ' if len(modules) == 1 else 'modules'}      {_shorten(modules)}",
            f"suggestion   {suggestion}",
        ]
    return "\n".join(lines)


def _shorten(names: Sequence[str]) -> str:
    """Join names; of a long list, keep the first and the last."""
    if len(names) > FIRST_SHOWN + LAST_SHOWN + 1:
        names = [
            *names[:FIRST_SHOWN],
            f"… {len(names) - FIRST_SHOWN - LAST_SHOWN} more",
            *names[-LAST_SHOWN:],
        ]
    return ", ".join(names)


def _count_text(names: Mapping[str, int]) -> str:
    """Return `relu ×16, add`: operations by their short names, most frequent first."""
    short: dict[str, int] = {}
    for name, count in names.items():
        word = name.removeprefix("aten.").partition(".")[0]
        short[word] = short.get(word, 0) + count
    return ", ".join(f"{word} ×{count}" if count > 1 else word for word, count in short.items())
