"""The result: a score split into positive, negative and nuisance terms, down to the pixels.

>>> d = dmbp.DMBP(model).explain(images, target=3)
>>> total = d.positive_output + d.negative_output + d.nuisance_output
>>> torch.allclose(total, d.output, atol=1e-4)
True
>>> torch.equal(d.attribution, d.positive + d.negative)
True

A decomposition on disk: one safetensors file, tensors beside a JSON of all that is not one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dmbp.baseline import Baseline, baseline_for
from dmbp.decompose.settings import Combine, Settings
from dmbp.errors import InputError, OutputError
from dmbp.linear.targets import OneTarget, function_name

ROUNDING = 10
"""Units in the last place of the terms."""


@dataclass(frozen=True)
class History:
    """The terms before each iteration; tensors of shape (iterations, rows)."""

    positive: Tensor
    negative: Tensor
    nuisance: Tensor


@dataclass(frozen=True)
class Decomposition:
    """DMBP's answer for every row: one target of one image.

    `targets[r]` is what row r was asked and `image[r]` the image it was asked about; of a function,
    its name is what a file keeps. The terms have shape (rows,), maps and attributions that of the
    inputs. `exactness` is the relative error of the linear network against the model, or against
    the model whose smooth activations are replaced by pieces; that one's error against the model is
    the `approximation_error`.
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

    def __repr__(self) -> str:
        """One line; tensors are long."""
        asked = ", ".join(str(target) for target in self.targets[:3])
        more = f" and {len(self.targets) - 3} more" if len(self.targets) > 3 else ""
        return (
            f"Decomposition({len(self.targets)} rows of inputs {tuple(self.inputs.shape[1:])}, "
            f"targets {asked}{more}, exactness {self.exactness:.1e})"
        )

    @property
    def nuisance_output(self) -> Tensor:
        """What neither stream carries; the last layer's own bias is counted in both and here
        taken off once, so the three terms add up to the output.
        """
        return self.output - self.positive_output - self.negative_output

    @property
    def positive(self) -> Tensor:
        """The positive stream's pixel attributions, ∇F⁺ ⊙ (x − reference)."""
        return self._keep(self.positive_map * (self.inputs - self.reference), sign=1)

    @property
    def negative(self) -> Tensor:
        """The negative stream's pixel attributions, ∇F⁻ ⊙ (x − reference)."""
        return self._keep(self.negative_map * (self.inputs - self.reference), sign=-1)

    @property
    def attribution(self) -> Tensor:
        """Signed pixel attributions: positive speaks for the target, negative against it."""
        return self.positive + self.negative

    @property
    def is_blank(self) -> Tensor:
        """By row, whether all attributions together are no more than the terms' rounding."""
        return self.moved <= self._rounding

    @property
    def is_rounding(self) -> Tensor:
        """By row, whether there are attributions and they are no more than that."""
        moved = self.moved
        return (moved > 0) & (moved <= self._rounding)

    @property
    def moved(self) -> Tensor:
        """By row, the sum of all attributions without their signs."""
        return self.attribution.abs().flatten(1).sum(1)

    @property
    def _rounding(self) -> Tensor:
        size = self.positive_output.abs() + self.negative_output.abs()
        return ROUNDING * torch.finfo(size.dtype).eps * size

    def read(self, *, reference: Baseline, combine: Combine) -> "Decomposition":
        """The same decomposition read out with another reference or another combination."""
        return replace(
            self,
            reference=baseline_for(self.inputs, reference),
            settings=replace(self.settings, reference=reference, combine=combine),
        )

    def save(self, path: str | Path) -> None:
        """Write to a safetensors file, which `dmbp.load` reads back."""
        save(self, path)

    def plot(self, path: str | Path, **options: Any) -> None:
        """Draw a picture: a panel of photo, attribution and linear maps for every row.

        Of signals (batch, channels, length) the lines are drawn, of vectors (batch, features) bars.
        `options` are those of `dmbp.render.plot_decomposition`: photos to show in place of the
        inputs, `target_captions` such as the classes' names, names of channels, and
        `style=dmbp.render.PanelStyle(smoothing=0)` for another look.
        """
        from dmbp.render import plot_decomposition

        plot_decomposition(self, path, **options)

    def _keep(self, attribution: Tensor, *, sign: int) -> Tensor:
        """Under "own_signs", only pixels whose channels add up to the stream's own sign."""
        if self.settings.combine == "sum":
            return attribution
        pixels = attribution.sum(1, keepdim=True) if attribution.dim() > 2 else attribution
        return attribution * (torch.sign(pixels) == sign)


def concatenate(parts: Sequence[Decomposition]) -> Decomposition:
    """Decompositions of the same settings as one, rows in order."""
    if len(parts) == 1:
        return parts[0]
    joined: dict[str, Any] = {
        field.name: torch.cat([getattr(part, field.name) for part in parts])
        for field in fields(Decomposition)
        if isinstance(getattr(parts[0], field.name), Tensor)
    }
    histories = {
        field.name: torch.cat([getattr(part.history, field.name) for part in parts], dim=1)
        for field in fields(History)
    }
    return replace(
        parts[0],
        **joined,
        history=History(**histories),
        targets=tuple(target for part in parts for target in part.targets),
        image=tuple(image for part in parts for image in part.image),
        exactness=max(part.exactness for part in parts),
        approximation_error=max(part.approximation_error for part in parts),
    )


FORMAT = "dmbp.decomposition/1"


def save(decomposition: Decomposition, path: str | Path) -> None:
    """Write a decomposition to a safetensors file."""
    from safetensors.torch import save_file

    tensors = _tensors(decomposition)
    about = {
        "targets": [_plain(target) for target in decomposition.targets],
        "image": decomposition.image,
        "exactness": decomposition.exactness,
        "approximation_error": decomposition.approximation_error,
        "settings": decomposition.settings.described(),
    }
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, str(path), {"format": FORMAT, "dmbp": json.dumps(about)})
    except Exception as error:
        raise OutputError(f"cannot write {path}: {error}") from error


def load(path: str | Path) -> Decomposition:
    """Read a decomposition that `Decomposition.save` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    if metadata.get("format") != FORMAT:
        raise InputError(f"{path} is not a saved decomposition (format {FORMAT})")
    return _decomposition(tensors, json.loads(metadata["dmbp"]))


def _tensors(decomposition: Decomposition) -> dict[str, Tensor]:
    tensors = {
        field.name: getattr(decomposition, field.name)
        for field in fields(Decomposition)
        if isinstance(getattr(decomposition, field.name), Tensor)
    }
    for field in fields(History):
        tensors[f"history.{field.name}"] = getattr(decomposition.history, field.name)
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _decomposition(tensors: dict[str, Tensor], about: dict[str, Any]) -> Decomposition:
    history = {
        name: tensors.pop(f"history.{name}") for name in ("positive", "negative", "nuisance")
    }
    settings = dict(about["settings"])
    settings["reference"] = {"zero": None, "blur": "blur"}.get(
        settings["reference"], tensors["reference"]
    )
    return Decomposition(
        **tensors,
        history=History(**history),
        targets=tuple(_target(target) for target in about["targets"]),
        image=tuple(about["image"]),
        exactness=about["exactness"],
        approximation_error=about.get("approximation_error", 0.0),
        settings=Settings(**settings),
    )


def _plain(target: OneTarget | str) -> Any:
    if isinstance(target, str):
        return target
    if isinstance(target, Mapping):
        return {str(index): weight for index, weight in target.items()}
    return function_name(target) if callable(target) else int(target)


def _target(target: Any) -> OneTarget | str:
    return {int(k): v for k, v in target.items()} if isinstance(target, dict) else target
