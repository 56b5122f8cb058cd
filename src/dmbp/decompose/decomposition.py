"""The result of DMBP: a score split into terms, with an attribution for every pixel.

>>> d = dmbp.DMBP(model).explain(images, target=3)
>>> total = d.positive_output + d.negative_output + d.nuisance_output
>>> torch.allclose(total, d.output, atol=1e-4)
True
>>> torch.equal(d.attribution, d.positive + d.negative)
True

A decomposition is saved as one safetensors file, with everything that is not a tensor as JSON in
its metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from dmbp.baseline import Baseline, baseline_for
from dmbp.decompose.settings import (
    DEFAULT_PRESET,
    NAMED_REMOVALS,
    Combine,
    Settings,
    WindowTest,
)
from dmbp.decompose.tested import Tested
from dmbp.display import Shown
from dmbp.errors import InputError, OutputError, TargetError
from dmbp.linear.named_target import BoundTarget, NamedTarget
from dmbp.linear.targets import Index, OneTarget, function_name
from dmbp.targets import target_from_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TEXT = "target"
"""The key of a target with a name, as text, in a saved file."""

ROUNDING_UNITS = 10
"""Attributions within this many units in the last place of the terms are rounding errors."""


@dataclass(frozen=True)
class History:
    """The terms before each iteration; tensors of shape (iterations, rows)."""

    positive: Tensor
    negative: Tensor
    nuisance: Tensor


@dataclass(frozen=True, eq=False)
class Labels:
    """What pictures of a decomposition show beside its numbers, and files keep.

    Attributes:
        photo: The photo as the model saw it, (height, width, 3) of whole numbers to 255.
        photo_caption: What is written above it.
        targets: What each row is about, such as a class's name.
        captions: What is written above each row's map; by default its target.
        activation: What turns outputs into probabilities; None if scores are shown.
        names: The names of channels or features.
        bands: The channels that are shown, from 1.
    """

    photo: Tensor | None = None
    photo_caption: str | None = None
    targets: tuple[str, ...] | None = None
    captions: tuple[str, ...] | None = None
    activation: str | None = None
    names: tuple[str, ...] | None = None
    bands: tuple[int, ...] | None = None

    def options(self, rows: int) -> dict[str, Any]:
        """Return them as options of `decomposition_figure`, which has a photo for each row."""
        caption = self.photo_caption
        found = {
            "photos": None if self.photo is None else [self.photo.numpy()] * rows,
            "photo_captions": None if caption is None else [caption] * rows,
            "target_names": self.targets,
            "target_captions": self.captions or self.targets,
            "activation": self.activation,
            "names": self.names,
            "bands": self.bands,
        }
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, eq=False)
class Decomposition(Shown):
    """DMBP's result for a batch of rows; a row is one target of one image.

    Terms have shape (rows,); maps and attributions are shaped like the inputs. It shows itself: in
    a notebook, by `show()`, and by `plot("cat.png")`. Two decompositions are equal if all their
    numbers are.

    Attributes:
        inputs: The image of each row.
        reference: What each image is compared with.
        positive_map: The linear map ∇F⁺ of the positive stream.
        negative_map: The linear map ∇F⁻ of the negative stream.
        output: The model's score, y.
        positive_output: The positive term, y⁺.
        negative_output: The negative term, y⁻.
        history: The terms before each iteration.
        targets: The target of each row; a function that was saved to a file is only a name.
        image: The index of each row's image in the call's inputs.
        exactness: The relative error of the linear network's output against the model's. If smooth
            activations are approximated by pieces, it is the error of the tangents instead.
        settings: How the masks were learned.
        approximation_error: The relative error that such pieces introduce.
        tested: What the model said about the map's colours; None if they were not tested.
        labels: The photo and the names that pictures show; None if only the inputs are known.
    """

    inputs: Tensor
    reference: Tensor
    positive_map: Tensor
    negative_map: Tensor
    output: Tensor
    positive_output: Tensor
    negative_output: Tensor
    history: History
    targets: tuple[OneTarget | str, ...]
    image: tuple[int, ...]
    exactness: float
    settings: Settings
    approximation_error: float = 0.0
    tested: Tested | None = None
    labels: Labels | None = None

    def __eq__(self, other: object) -> bool:
        """Return whether everything but the labels is the same in another, on any device."""
        if not isinstance(other, Decomposition):
            return NotImplemented
        return _is_same(replace(self, labels=None), replace(other, labels=None))

    def __repr__(self) -> str:
        """Describe the decomposition in one line, without its tensors."""
        targets = ", ".join(str(target) for target in self.targets[:3])
        more = f" and {len(self.targets) - 3} more" if len(self.targets) > 3 else ""
        return (
            f"Decomposition({len(self.targets)} rows of inputs {tuple(self.inputs.shape[1:])}, "
            f"targets {targets}{more}, exactness {self.exactness:.1e})"
        )

    @property
    def nuisance_output(self) -> Tensor:
        """The nuisance term y~: the part of the score that neither stream carries.

        The last layer's bias is counted in both other terms and subtracted once here, so that the
        three terms add up to the output.
        """
        return self.output - self.positive_output - self.negative_output

    @property
    def positive(self) -> Tensor:
        """The attributions of pixels that speak for the target, or of the positive stream.

        If colours were tested, these are the positive attributions, which add up to `worth_for`.
        Otherwise they are ∇F⁺ ⊙ (x − reference); with `combine="own_signs"`, only those of its
        pixels that speak for the target.
        """
        if self.tested is not None:
            return self.tested.attribution.clamp(min=0)
        return self._keep(self.streams[0], sign=1)

    @property
    def negative(self) -> Tensor:
        """The attributions of pixels that speak against the target, or of the negative stream.

        If colours were tested, these are the negative attributions, which add up to
        −`worth_against`. Otherwise they are ∇F⁻ ⊙ (x − reference); with `combine="own_signs"`, only
        those of its pixels that speak against the target.
        """
        if self.tested is not None:
            return self.tested.attribution.clamp(max=0)
        return self._keep(self.streams[1], sign=-1)

    @property
    def attribution(self) -> Tensor:
        """The signed attributions: positive speaks for the target, negative against it."""
        if self.tested is not None:
            return self.tested.attribution
        return self.positive + self.negative

    @property
    def streams(self) -> tuple[Tensor, Tensor]:
        """The streams' own attributions, ∇F⁺ ⊙ (x − reference) and ∇F⁻ ⊙ (x − reference)."""
        displacement = self.inputs - self.reference
        return self.positive_map * displacement, self.negative_map * displacement

    @property
    def worth_for(self) -> Tensor:
        """What the score loses if all pixels that speak for the target are removed, (rows,)."""
        return self._test_result().worth_for

    @property
    def worth_against(self) -> Tensor:
        """What the score gains if all pixels that speak against it are removed, (rows,)."""
        return self._test_result().worth_against

    @property
    def is_blank(self) -> Tensor:
        """Whether each row's attributions are zero or rounding errors, (rows,)."""
        return self.magnitude <= self._rounding

    @property
    def is_rounding(self) -> Tensor:
        """Whether each row's attributions are rounding errors but not all zero, (rows,)."""
        magnitude = self.magnitude
        return (magnitude > 0) & (magnitude <= self._rounding)

    @property
    def magnitude(self) -> Tensor:
        """The sum of the absolute values of each row's attributions, (rows,)."""
        return self.attribution.abs().flatten(1).sum(1)

    @property
    def _rounding(self) -> Tensor:
        size = self.output.abs()
        if self.tested is None:
            size = self.positive_output.abs() + self.negative_output.abs()
        return ROUNDING_UNITS * torch.finfo(size.dtype).eps * size

    def read(self, *, reference: Baseline, combine: Combine) -> Decomposition:
        """Return the same decomposition with another reference or another combination of streams.

        The result shows the streams themselves, as the paper does, without any test of colours.

        Args:
            reference: None or "zero", "blur", "mean" or a tensor.
            combine: "sum" or "own_signs".

        Returns:
            A decomposition with the same maps and terms.
        """
        return replace(
            self,
            reference=baseline_for(self.inputs, reference),
            settings=replace(self.settings, reference=reference, combine=combine, test=None),
            tested=None,
        )

    def of_image(self, image: int) -> Decomposition:
        """Return the rows of one image of the call, as if it had been explained alone."""
        rows = [row for row, own in enumerate(self.image) if own == image]
        history = {k.name: getattr(self.history, k.name)[:, rows] for k in fields(History)}
        tested = self.tested
        return replace(
            self,
            **_picked_tensors(self, rows),
            tested=None if tested is None else replace(tested, **_picked_tensors(tested, rows)),
            history=History(**history),
            targets=tuple(self.targets[row] for row in rows),
            image=(0,) * len(rows),
        )

    def save(self, path: str | Path) -> None:
        """Write the decomposition to a safetensors file, which `dmbp.load` reads.

        Args:
            path: The file to write; missing folders are created.

        Raises:
            OutputError: If the file cannot be written.
        """
        save(self, path)

    def figure(self, **options: Any) -> Figure:
        """Return a picture of every row: the photo, its colours, and the photo without them.

        A map that was not tested is drawn with the linear maps and the three terms. Signals (batch,
        channels, length) are drawn as lines, vectors (batch, features) as bars.

        Args:
            **options: Those of `dmbp.render.decomposition_figure`: `photos` to show in place of the
                inputs, `target_captions` such as class names, `activation` to show
                probabilities in place of scores, `names` of channels or features, and `style`, such
                as `dmbp.render.PanelStyle(smoothing=0)`.

        Returns:
            A matplotlib figure. `plot` also writes it to a file.

        Raises:
            InputError: If the inputs cannot be drawn, or the options do not fit them.
        """
        from dmbp.render import decomposition_figure

        known = {} if self.labels is None else self.labels.options(len(self.targets))
        return decomposition_figure(self, **known | options)

    def draw_on(self, axes: Axes, *, row: int | None = None, **options: Any) -> None:
        """Draw the map of one row over its image into axes of matplotlib.

        Args:
            axes: The axes.
            row: Which row; it may be left out if there is only one.
            **options: Those of `dmbp.render.draw_row`: `photo`, `caption` and `style`.

        Raises:
            InputError: If the row has to be said, or the inputs are not images.
        """
        from dmbp.render import draw_row

        if row is None and len(self.targets) > 1:
            raise InputError(
                f"there are {len(self.targets)} rows, and axes show one: say which with row=0"
            )
        draw_row(self, row or 0, axes, **options)

    def _test_result(self) -> Tested:
        if self.tested is None:
            raise InputError(
                f"the colours of this map were not tested; use the preset {DEFAULT_PRESET!r}"
            )
        return self.tested

    def _keep(self, attribution: Tensor, *, sign: int) -> Tensor:
        """With "own_signs", keep only pixels whose channels add up to the stream's sign."""
        if self.settings.combine == "sum":
            return attribution
        pixels = attribution.sum(1, keepdim=True) if attribution.dim() > 2 else attribution
        return attribution * (torch.sign(pixels) == sign)


def concatenate(parts: Sequence[Decomposition]) -> Decomposition:
    """Return one decomposition with the rows of all parts, which share their settings."""
    if len(parts) == 1:
        return parts[0]
    joined = _joined_tensors(parts)
    tests = [part.tested for part in parts if part.tested is not None]
    tested = replace(tests[0], **_joined_tensors(tests)) if tests else None
    histories = {
        field.name: torch.cat([getattr(part.history, field.name) for part in parts], dim=1)
        for field in fields(History)
    }
    return replace(
        parts[0],
        **joined,
        labels=None,
        tested=tested,
        history=History(**histories),
        targets=tuple(target for part in parts for target in part.targets),
        image=tuple(image for part in parts for image in part.image),
        exactness=max(part.exactness for part in parts),
        approximation_error=max(part.approximation_error for part in parts),
    )


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values, and all that is in them, are equal."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same_kind = one.shape == other.shape and one.dtype == other.dtype
        return same_kind and torch.equal(one.cpu(), other.cpu())
    if is_dataclass(one) and not isinstance(one, type | NamedTarget | BoundTarget):
        names = [field.name for field in fields(one)]
        return type(one) is type(other) and all(
            _is_same(getattr(one, name), getattr(other, name)) for name in names
        )
    if isinstance(one, tuple | list):
        parts, others = cast("Sequence[Any]", one), cast("Sequence[Any]", other)
        return (
            type(one) is type(other)
            and len(parts) == len(others)
            and all(map(_is_same, parts, others))
        )
    if isinstance(one, NamedTarget | BoundTarget):
        return isinstance(other, NamedTarget | BoundTarget) and one.text == other.text
    return type(one) is type(other) and bool(one == other)


def _joined_tensors(parts: Sequence[Any]) -> dict[str, Any]:
    """Return every field of these dataclasses that is a tensor, with the rows of all parts."""
    return {
        field.name: torch.cat([getattr(part, field.name) for part in parts])
        for field in fields(parts[0])
        if isinstance(getattr(parts[0], field.name), Tensor)
    }


def _picked_tensors(whole: Any, rows: Sequence[int]) -> dict[str, Any]:
    """Return these rows of every field of a dataclass that is a tensor."""
    tensors = ((field.name, getattr(whole, field.name)) for field in fields(whole))
    return {name: value[list(rows)] for name, value in tensors if isinstance(value, Tensor)}


FORMAT = "dmbp.decomposition/1"


def save(decomposition: Decomposition, path: str | Path) -> None:
    """Write a decomposition to a safetensors file."""
    from safetensors.torch import save_file

    tensors = _tensors(decomposition)
    metadata = {
        "targets": [_target_to_json(target) for target in decomposition.targets],
        "image": decomposition.image,
        "exactness": decomposition.exactness,
        "approximation_error": decomposition.approximation_error,
        "settings": decomposition.settings.described(),
        "removals": None if decomposition.tested is None else decomposition.tested.removals,
        "labels": _labels_to_json(decomposition.labels),
    }
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, str(path), {"format": FORMAT, "dmbp": json.dumps(metadata)})
    except Exception as error:
        raise OutputError(f"cannot write {path}: {error}") from error


def load(path: str | Path) -> Decomposition:
    """Read a decomposition that `Decomposition.save` wrote.

    Args:
        path: The safetensors file.

    Returns:
        The decomposition, on the CPU.

    Raises:
        InputError: If the file cannot be read, or is not a saved decomposition.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    if metadata.get("format") != FORMAT:
        raise InputError(f"{path} is not a saved decomposition (format {FORMAT})")
    return _from_file(tensors, json.loads(metadata["dmbp"]))


def _tensors(decomposition: Decomposition) -> dict[str, Tensor]:
    tensors = {
        field.name: getattr(decomposition, field.name)
        for field in fields(Decomposition)
        if isinstance(getattr(decomposition, field.name), Tensor)
    }
    for field in fields(History):
        tensors[f"history.{field.name}"] = getattr(decomposition.history, field.name)
    if decomposition.tested is not None:
        for field in fields(Tested):
            if field.name != "removals":
                tensors[f"tested.{field.name}"] = getattr(decomposition.tested, field.name)
    if decomposition.labels is not None and decomposition.labels.photo is not None:
        tensors["labels.photo"] = decomposition.labels.photo
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _labels_to_json(labels: Labels | None) -> dict[str, Any] | None:
    if labels is None:
        return None
    return {name: value for name, value in vars(labels).items() if name != "photo"}


def _labels_from_json(found: Mapping[str, Any] | None, photo: Tensor | None) -> Labels | None:
    if found is None:
        return None
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
    return Labels(photo, **values)


def _from_file(tensors: dict[str, Tensor], metadata: dict[str, Any]) -> Decomposition:
    history = {
        name: tensors.pop(f"history.{name}") for name in ("positive", "negative", "nuisance")
    }
    tested: dict[str, Any] = {
        name.removeprefix("tested."): tensors.pop(name)
        for name in tuple(tensors)
        if name.startswith("tested.")
    }
    settings = dict(metadata["settings"])
    settings["reference"] = {"zero": None, "blur": "blur"}.get(
        settings["reference"], tensors["reference"]
    )
    labels = _labels_from_json(metadata.get("labels"), tensors.pop("labels.photo", None))
    test = {name: settings.pop(name) for name in WindowTest.__annotations__ if name in settings}
    if test:
        settings["test"] = _window_test(test)
    return Decomposition(
        **tensors,
        history=History(**history),
        targets=tuple(_target_from_json(target) for target in metadata["targets"]),
        image=tuple(metadata["image"]),
        exactness=metadata["exactness"],
        approximation_error=metadata.get("approximation_error", 0.0),
        settings=Settings(**settings),
        tested=Tested(**tested, removals=tuple(metadata["removals"])) if tested else None,
        labels=labels,
    )


def _window_test(described: Mapping[str, Any]) -> WindowTest:
    """Return the settings that `WindowTest.described` describes; tensors and functions are lost."""
    known = {name: value for name, value in described.items() if value != "auto"}
    names = known.pop("removal", "").split(" and ")
    removals: Any = tuple(name for name in names if name in NAMED_REMOVALS)
    return WindowTest(**known, removal=removals or None)


def _target_to_json(target: OneTarget | str) -> Any:
    if isinstance(target, str):
        return target
    if isinstance(target, Mapping):
        return {_index_text(index): weight for index, weight in target.items()}
    if isinstance(target, NamedTarget | BoundTarget):
        return {TEXT: target.text}
    if callable(target):
        return function_name(target)
    return list(target) if isinstance(target, tuple) else int(target)


def _target_from_json(target: Any) -> OneTarget | str:
    if isinstance(target, dict) and TEXT in target:
        return _named_target(str(target[TEXT]))
    if isinstance(target, dict):
        return {_index_from_text(k): v for k, v in target.items()}
    return tuple(target) if isinstance(target, list) else target


def _named_target(text: str) -> NamedTarget | str:
    """Return a target that was saved as text; one of a user's own class is only its text."""
    try:
        return target_from_text(text)
    except TargetError:
        return text


def _index_text(index: Index) -> str:
    """Return an index into the outputs as the text of a JSON key: "3", or "3,17"."""
    return ",".join(map(str, index)) if isinstance(index, tuple) else str(index)


def _index_from_text(text: str) -> Any:
    numbers = [int(number) for number in text.split(",")]
    return tuple(numbers) if len(numbers) > 1 else numbers[0]
