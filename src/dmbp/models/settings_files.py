"""Reads the files beside a model file that say how photos are prepared for it.

These are, in this order, so that each overrides what comes before it:

1. `config.json` of timm (its `pretrained_cfg` and labels) or of Hugging Face (its `id2label`), and
   Hugging Face's `preprocessor_config.json`;
2. `net.toml` for `net.onnx` or `net.pt2`, with the fields of `InputSettings`; `classes`, a list of
   names or the name of a file beside it with one name per line; and, for an ONNX file, the fields
   of `Ends`:

       size = [48, 192]         # height and width, or one number
       fit = "squeeze"
       mean = [104, 117, 123]   # in the order of channels and the range of scale
       scale = 255
       channels = "bgr"
       classes = "names.txt"
       output = "scores"        # the output to explain; `input` is the input
       hold = {sr = 16000}      # the values of other inputs
"""

from __future__ import annotations

import tomllib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from dmbp.errors import ModelError, first_line
from dmbp.files import check_file, is_missing, read_text, shown
from dmbp.models.exported_program import Ends
from dmbp.models.hugging_face import folder_preprocessing, labels_by_index
from dmbp.models.input_settings import InputSettings, SettingsLayer, settings_of
from dmbp.models.text_files import MAX_BYTES, check_class_names, read_classes, read_json
from dmbp.models.timm_models import layer_from_config
from dmbp.validation import Constraint, ErrorContext, parse


def _is_held(value: Any) -> bool:
    """Return whether a value is None or a table of finite numbers, or lists of them."""
    values: list[Any] = [] if value is None else [*getattr(value, "values", lambda: [None])()]
    lists: list[list[Any]] = [value if isinstance(value, list) else [value] for value in values]
    return all(
        type(number) in (int, float) and abs(number) < 2**63
        for numbers in lists
        for number in numbers
    )


HELD = Constraint(
    "a table of numbers by name, or of lists of numbers, such as {sr = 16000}", _is_held
)


@dataclass(frozen=True)
class SettingsFile(InputSettings):
    """The content of a TOML file beside a model."""

    classes: Annotated[
        Any,
        Constraint(
            "a list of names, or the name of a text file",
            lambda value: (
                value is None
                or isinstance(value, str)
                or (isinstance(value, list) and all(isinstance(name, str) for name in value))
            ),
        ),
    ] = None
    input: str | None = None
    output: str | None = None
    hold: Annotated[Any, HELD] = None

    @property
    def ends(self) -> Ends:
        """Which inputs and outputs of an ONNX file are meant."""
        return Ends(self.input, self.output, self.hold or {})


def layers_beside(model: Path) -> list[SettingsLayer]:
    """Return what the files beside a model file say about its input, in the order they apply.

    Raises:
        InputError: If a TOML file has an unknown key or a value that is not allowed.
        ModelError: If a file cannot be read.
    """
    layers = [*_read_json_files(model), _read_toml(model.with_suffix(".toml"))]
    return [layer for layer in layers if layer is not None]


def _read_toml(path: Path) -> SettingsLayer | None:
    if is_missing(path):
        return None
    what = "file of input settings"
    text = read_text(path, what=what, error=ModelError, most_bytes=MAX_BYTES)
    try:
        table = tomllib.loads(text)
    except RecursionError as error:
        raise ModelError(f"{shown(path)} is not TOML: its lists are nested too deeply") from error
    except ValueError as error:
        raise ModelError(f"{shown(path)} is not TOML: {first_line(error)}") from error
    context = ErrorContext(shown(path), key_noun="setting")
    settings = parse(SettingsFile, table, lambda _: context)
    names = _class_names(settings.classes, path)
    return SettingsLayer(path.name, settings, names, ends=settings.ends)


def _class_names(classes: list[str] | str | None, path: Path) -> tuple[str, ...] | None:
    if classes is None:
        return None
    if isinstance(classes, list):
        return check_class_names(classes, f"'classes' of {shown(path)}")
    if not classes or Path(classes).name != classes:
        raise ModelError(
            f"'classes' of {shown(path)} must be the name of a file beside it, not "
            f"{shown(classes)!r}"
        )
    return read_classes(path.with_name(classes))


def _read_json_files(model: Path) -> list[SettingsLayer | None]:
    """Return the layers of timm's and Hugging Face's JSON files in a model file's folder."""
    config = model.with_name("config.json")
    table = {} if is_missing(config) else read_json(config)
    if isinstance(table.get("pretrained_cfg"), dict):
        return [layer_from_config(table, config.name)]
    layers: list[SettingsLayer | None] = []
    if isinstance(table.get("id2label"), dict):
        layers.append(SettingsLayer(config.name, classes=labels_by_index(table["id2label"])))
    processor = model.with_name("preprocessor_config.json")
    if not is_missing(processor):
        layers.append(_processor_layer(processor))
    return layers


def _processor_layer(path: Path) -> SettingsLayer | None:
    """Return the settings of Hugging Face's image processor, or None with a warning."""
    check_file(path, what="JSON file", error=ModelError, most_bytes=MAX_BYTES)
    try:
        found = folder_preprocessing(path.parent)
    except ModelError as error:
        warnings.warn(f"{shown(path)} is not used: {error}", stacklevel=2)
        return None
    return SettingsLayer(path.name, settings_of(found), conventional=True)
