"""A decomposition on disk: one safetensors file, tensors beside a JSON of all that is not one."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor

from dmbp.decompose.decomposition import Decomposition, History
from dmbp.decompose.settings import Settings
from dmbp.errors import InputError, OutputError
from dmbp.linear.targets import OneTarget, function_name

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
