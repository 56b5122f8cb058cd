"""Explains all items of a dataset, one after another, in constant memory.

    >>> data = torch.utils.data.TensorDataset(images, torch.tensor([3]))
    >>> for item in explain_dataset(data, model, folder="maps", progress=False):
    ...     print(item.index, item.target, item.attribution.shape)
    0 3 torch.Size([3, 8, 8])

Datasets and `DataLoader`s are read as a stream of items, and explained in groups of a fixed size.
With a folder, each group is written as soon as it is done (`folder.py`), so a run that is
killed is continued by the same call, with the same results.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor
from torch.export import ExportedProgram

from dmbp import __version__
from dmbp.attribution import DMBP
from dmbp.decompose.decomposition import Decomposition, _target_to_json
from dmbp.errors import CaptureError, DMBPError, InputError, TargetError, one_line
from dmbp.linear import Target
from dmbp.linear.model.checks import check_batch
from dmbp.linear.model.wrappers import Model, evaluating
from dmbp.models.digest import module_digest
from dmbp.validation import check_keywords
from dmbp.workflows.datasets.folder import DatasetFolder, Records, on_cpu, tensor_digest
from dmbp.workflows.datasets.items import (
    LABEL,
    PREDICTED,
    Data,
    Item,
    ItemStream,
    class_label,
)

GROUP_SIZES: Mapping[str, int] = {"cpu": 8, "cuda": 64}
"""How many items are explained together, by the type of the device; others as on a CPU."""


@dataclass(frozen=True)
class ExplainedItem:
    """What was found about one item of a dataset.

    Attributes:
        index: The item's position in the dataset.
        target: What was explained: a class, or another target as plain values.
        label: The item's label, if it is a class.
        predicted: The model's highest output, or None if its outputs are no classes.
        score: The model's output for the target.
        worth_for: What the score loses without all red pixels; None if colours were not tested.
        worth_against: What it gains without all blue pixels, likewise.
        confirmed: Whether the score falls without the strongest red pixels, however removed.
        exactness: The relative error of the linear network's outputs in the item's group.
        seconds: How long the item took, its group's time divided by the number of items.
        attribution: The signed attributions, shaped like the item's input, on the CPU.
    """

    index: int
    target: Any
    label: int | None
    predicted: int | None
    score: float
    worth_for: float | None
    worth_against: float | None
    confirmed: bool | None
    exactness: float
    seconds: float
    attribution: Tensor

    def record(self) -> dict[str, Any]:
        """Return everything but the attribution as plain values."""
        names = [field.name for field in fields(self) if field.name != "attribution"]
        return {name: getattr(self, name) for name in names}


def explain_dataset(
    data: Data,
    model: Model | DMBP,
    *,
    target: Target | Literal["label", "predicted"] = None,
    folder: str | Path | None = None,
    batch_size: int | Literal["auto"] = "auto",
    progress: bool = True,
    **settings: Any,
) -> Iterator[ExplainedItem]:
    """Explain every item of a dataset, and yield the results in the order of the items.

    Only one group of items is in memory at a time. Inputs are moved to the model's device.

    Args:
        data: A `Dataset`, whose samples are inputs without a batch dimension; a `DataLoader`; or
            any iterable of samples. A sample is a tensor, a pair of input and label, or a
            dictionary with an entry such as "image" or "pixel_values", and perhaps "label".
        model: A module or an exported program, or a `DMBP` that is used as it is.
        target: "label" explains each item's label, "predicted" the class with the highest output,
            and None the label if the item has one. Anything else is explained for every item: a
            class, weighted classes, a target of `dmbp.targets`, or a function of an image's
            outputs.
        folder: Where to write the results. If it has results of an earlier run already, only what
            is missing is computed. None writes nothing.
        batch_size: How many items are explained together; "auto" depends on the device.
        progress: Whether to show a progress bar on standard error.
        **settings: The settings of `DMBP`.

    Returns:
        An iterator of `ExplainedItem`s. Nothing is computed before the first is asked for.

    Raises:
        InputError: If the data, an item, or a setting cannot be used, or the folder holds results
            of another model, other settings or other data.
        TargetError: If an item's label is not one of the model's classes.
        OutputError: If the folder cannot be written.
    """
    known = [*inspect.signature(DMBP.__init__).parameters]
    known += [*inspect.signature(explain_dataset).parameters]
    check_keywords(settings, known, "explain_dataset takes no argument")
    if isinstance(model, DMBP) and settings:
        raise InputError(f"{', '.join(settings)}: settings belong to the DMBP that is given")
    explainer = model if isinstance(model, DMBP) else DMBP(model, **settings)
    if isinstance(target, str) and target not in (LABEL, PREDICTED):
        raise InputError(
            f"target must be 'label', 'predicted', a class's number or another target, not "
            f"{target!r}"
        )
    device = _device(explainer.linearizer.model)
    if batch_size == "auto":
        batch_size = GROUP_SIZES.get(device.type, GROUP_SIZES["cpu"])
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"batch_size must be 1 or more, or 'auto', not {batch_size!r}")
    stream = ItemStream(data)
    if folder is not None:
        stream.check_order()
    run = _Run(explainer, target, batch_size, device)
    kept = None if folder is None else DatasetFolder(Path(folder), run.fingerprint(stream))
    return run.items(stream, kept, progress=progress)


@dataclass(frozen=True)
class _Run:
    """Explains groups of items."""

    explainer: DMBP
    target: Any
    size: int
    device: torch.device

    def fingerprint(self, stream: ItemStream) -> dict[str, Any]:
        """Return what determines the results, as plain values."""
        settings, target = self.explainer.settings, self.target
        given = {"reference": settings.reference}
        given |= {} if settings.test is None else {"removal": settings.test.removals}
        digests = {f"{k} tensor": _digests(v) for k, v in given.items()}
        model = self.explainer.linearizer.model
        is_word = target is None or isinstance(target, str)
        return {
            "dmbp": __version__,
            "model": _model_digest(model),
            "settings": {**self.explainer.described(), **digests},
            "target": (target or "label or predicted") if is_word else _described(target),
            "batch_size": self.size,
            "data": stream.described(),
        }

    def items(
        self, stream: ItemStream, folder: DatasetFolder | None, *, progress: bool
    ) -> Iterator[ExplainedItem]:
        """Yield what was found about each item, from the folder or computed now."""
        console = Console(stderr=True)
        is_shown = progress and console.is_terminal  # the bar has a thread, which forks would copy
        with Progress(console=console, transient=True, disable=not is_shown) as bar:
            task = bar.add_task("explaining", total=stream.length)
            for group in stream.groups(self.size, _none if folder is None else folder.records):
                if folder is not None and group.records is not None:
                    found = _from_folder(folder, group.first, group.records)
                else:
                    found = self.explain(group.items)
                    if folder is not None:
                        records = [item.record() for item in found]
                        folder.write(group.first, records, [item.attribution for item in found])
                del group
                while found:
                    bar.advance(task)
                    yield found.pop(0)

    def explain(self, group: list[Item]) -> list[ExplainedItem]:
        """Explain a group of items; neighbours of the same shape are explained together."""
        found: list[ExplainedItem] = []
        start = 0
        for end in range(1, len(group) + 1):
            if end < len(group) and _form(group[end].input) == _form(group[start].input):
                continue
            found += self._explain_batch(group[start:end])
            start = end
        return found

    def _explain_batch(self, items: Sequence[Item]) -> list[ExplainedItem]:
        started = time.perf_counter()
        labels = [class_label(item, self.target) for item in items]
        inputs = torch.stack([item.input for item in items]).to(self.device)
        outputs = self._outputs(inputs, items)
        predicted = outputs.argmax(1).tolist() if self._gives_classes(inputs) else None
        targets = self._targets(labels, predicted, outputs, items)
        try:
            d = self.explainer.explain(inputs, target=targets, outputs=outputs)
        except CaptureError:
            raise
        except DMBPError as error:
            raise _of_item(error, self._culprit(items, targets, error)) from error
        if len(d.targets) != len(items):
            raise InputError("explain_dataset explains one target of each item, not several")
        seconds = (time.perf_counter() - started) / len(items)
        return _explained_items(d, items, labels, predicted, seconds)

    def _outputs(self, inputs: Tensor, items: Sequence[Item]) -> Tensor:
        """Return the model's outputs; an error names the item that it is about."""
        runner = self.explainer.linearizer.runner
        try:
            with evaluating(runner.model):
                return runner.outputs(runner.check_inputs(inputs))
        except DMBPError as error:
            raise _of_item(error, self._culprit(items, None, error)) from error

    def _culprit(self, items: Sequence[Item], targets: Any, error: DMBPError) -> Item | None:
        """Return the item that alone leads to the same error as its batch, if one does."""
        runner = self.explainer.linearizer.runner
        for k, item in enumerate(items):
            one = item.input[None].to(self.device)
            of_one = [targets[k]] if isinstance(targets, list) else targets
            try:
                with evaluating(runner.model):
                    check_batch(one)
                    runner.target_rows(one, of_one)
            except type(error):
                return item
            except DMBPError:
                continue
        return items[0] if len(items) == 1 else None

    def _gives_classes(self, inputs: Tensor) -> bool:
        form = self.explainer.linearizer.runner.form(inputs)
        return form is None or not form.has_several_dimensions

    def _targets(
        self,
        labels: Sequence[int | None],
        predicted: list[int] | None,
        outputs: Tensor,
        items: Sequence[Item],
    ) -> Any:
        """Return what to explain of each item, in the form that `DMBP.explain` takes."""
        if self.target is not None and not isinstance(self.target, str):
            return self.target
        if predicted is None:
            raise InputError(
                "the model's outputs are no scores of classes: pass what to explain as target, "
                "such as one of dmbp.targets"
            )
        if self.target == PREDICTED:
            return predicted
        for label, item in zip(labels, items, strict=True):
            if label is not None and not 0 <= label < outputs.shape[1]:
                raise TargetError(
                    f"item {item.index}: its label {label} is not one of the model's "
                    f"{outputs.shape[1]} classes, 0 to {outputs.shape[1] - 1}"
                )
        both = zip(labels, predicted, strict=True)
        return [best if label is None else label for label, best in both]


def _explained_items(
    d: Decomposition,
    items: Sequence[Item],
    labels: Sequence[int | None],
    predicted: list[int] | None,
    seconds: float,
) -> list[ExplainedItem]:
    tested = d.tested
    numbers: dict[str, list[Any]] = {"score": d.output.tolist()}
    for name, values in (
        ("worth_for", None if tested is None else tested.worth_for),
        ("worth_against", None if tested is None else tested.worth_against),
        ("confirmed", None if tested is None else tested.is_confirmed),
    ):
        numbers[name] = [None] * len(items) if values is None else values.tolist()
    return [
        ExplainedItem(
            index=item.index,
            target=_target_to_json(d.targets[k]),
            label=labels[k],
            predicted=None if predicted is None else predicted[k],
            **{name: values[k] for name, values in numbers.items()},
            exactness=d.exactness,
            seconds=round(seconds, 6),
            attribution=attribution,
        )
        for k, (item, attribution) in enumerate(zip(items, on_cpu(d.attribution), strict=True))
    ]


def _from_folder(folder: DatasetFolder, first: int, records: Records) -> list[ExplainedItem]:
    pairs = zip(records, folder.attributions(first), strict=True)
    return [ExplainedItem(**record, attribution=attribution) for record, attribution in pairs]


def _none(_first: int, _count: int) -> None:
    """Return None: without a folder, no group is done."""


def _described(target: Any) -> str:
    """Return a target as text; one of several classes for each item has several texts."""
    try:
        return json.dumps(_target_to_json(target), sort_keys=True)
    except (TypeError, ValueError):
        return repr(target)


def _digests(removals: Any) -> str:
    """Return digests of the tensors among what replaces pixels."""
    given = removals if isinstance(removals, tuple) else (removals,)
    return " ".join(tensor_digest(k) for k in given if isinstance(k, Tensor))


def _device(model: Model) -> torch.device:
    tensors: Iterable[Any]
    if isinstance(model, ExportedProgram):
        tensors = model.state_dict.values()
    else:
        tensors = (*model.parameters(), *model.buffers())
    return next((k.device for k in tensors if isinstance(k, Tensor)), torch.device("cpu"))


def _model_digest(model: Model) -> str:
    return module_digest(model.module() if isinstance(model, ExportedProgram) else model)


def _of_item(error: DMBPError, item: Item | None) -> DMBPError:
    """Return an error that names the item it is about."""
    if item is None or isinstance(error, CaptureError):
        return error
    kind = TargetError if isinstance(error, TargetError) else InputError
    return kind(f"item {item.index}, of shape {tuple(item.input.shape)}: {one_line(error)}")


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return (*tensor.shape, tensor.dtype)
