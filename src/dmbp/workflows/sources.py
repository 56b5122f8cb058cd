"""What a user gives: an input in any form, a model in any form, and what to ask.

`read_inputs` makes a `Photo` or an `ArrayInput` of a file, of bytes, of an image, of an array or of
a tensor. `load_classifier` makes a `Classifier` of a model's name, of a file, or of a module that
the user made. `asked_targets` makes a list of what may be one target or several.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, SupportsIndex, cast

import numpy
import torch
from PIL import Image
from torch import Tensor, nn
from torch.export import ExportedProgram

from dmbp.data import is_array_file, read_array, read_photo
from dmbp.data.arrays import PICTURES
from dmbp.data.photo import photo_of
from dmbp.devices import AUTO
from dmbp.errors import InputError, ModelError, PhotoError, TargetError, first_line
from dmbp.files import shown
from dmbp.linear.named_target import BoundTarget, NamedTarget, TargetContext
from dmbp.linear.targets import function_name
from dmbp.models import Classifier, as_classifier, is_architecture, is_preparation_known
from dmbp.models.input_settings import InputSettings
from dmbp.models.modules import HOW_TO_SAY, as_preprocessing
from dmbp.models.text_files import read_classes
from dmbp.targets import Class, Value
from dmbp.workflows.arrays import ArrayInput
from dmbp.workflows.explained_target import Asked
from dmbp.workflows.input_shape import inputs_of, takes_photos
from dmbp.workflows.prediction import ModelSpec, Prediction, predict

IMAGE_CHANNELS = (1, 3, 4)
"""How many channels an array may have to be a photo: grey, RGB, or RGB with transparency."""


@dataclass(frozen=True)
class Photo:
    """A decoded photo and what to explain: `targets` and `rather_than` are as for `predict`.

    `name` is used in messages, `stem` in the names of the files that are written.
    """

    name: str
    stem: str
    image: Image.Image
    targets: Sequence[Asked]
    rather_than: Sequence[str] = ()

    def predict(self, classifier: Classifier) -> Prediction:
        """Run the model on the photo."""
        targets, others = self.targets, self.rather_than
        return predict(self.image, self.name, classifier, targets, rather_than=others)


@dataclass(frozen=True)
class InputQuestion:
    """What is asked about an input, and which bands pictures of it show."""

    targets: Sequence[Asked] = ()
    rather_than: Sequence[str] = ()
    bands: Sequence[int] | None = None


def read_inputs(
    source: Any,
    classifier: Classifier,
    question: InputQuestion,
    *,
    name: str = "",
    stem: str = "photo",
) -> list[Photo | ArrayInput]:
    """Return the inputs in what a user gives; only a table or a batch has several.

    Args:
        source: A file's path; the content of a photo's file as bytes; a Pillow image; an array,
            of a photo or of numbers as the model takes them; or a tensor, as the model takes it.
        classifier: The model.
        question: What is asked about each.
        name: What messages call it; by default its path, or what it is.
        stem: How the names of its results begin.

    Raises:
        PhotoError: If it cannot be read, or the model takes something else.
        InputError: If it has none of these forms.
    """
    is_grey = len(classifier.preprocessing.mean) == 1
    if isinstance(source, str | os.PathLike):
        text = os.fspath(cast("str | os.PathLike[str]", source))
        name = name or str(text)
        if "://" in name:
            raise PhotoError(f"{shown(name)} is an address: download the photo, and give its file")
        path = Path(text)
        is_picture = path.suffix.lower() in PICTURES and not takes_photos(classifier)
        if is_array_file(path) or is_picture:
            file = read_array(path)
            values = torch.from_numpy(file.values)
            found = inputs_of(values, name, classifier, is_table=file.is_table)
            return _array_inputs(found, name, stem, question, file.names)
        return [_photo(read_photo(path, deep=is_grey), name, stem, classifier, question)]
    if hasattr(source, "read") and not isinstance(source, Image.Image):
        source = _read(source)
    if isinstance(source, bytes | bytearray | memoryview):
        image = photo_of(bytes(source), name or "the photo", deep=is_grey)
        return [_photo(image, name or "photo", stem, classifier, question)]
    if isinstance(source, numpy.ndarray):
        source = _as_image(source, classifier)
    if isinstance(source, Image.Image):
        image = photo_of(source, name or "the photo", deep=is_grey)
        return [_photo(image, name or "photo", stem, classifier, question)]
    if isinstance(source, numpy.ndarray):
        source = torch.from_numpy(_as_numbers(source))
    if isinstance(source, Tensor):
        found = inputs_of(_checked(source), name or "the tensor", classifier)
        return _array_inputs(found, name or "input", stem, question, None)
    raise InputError(
        "a photo is a path, the bytes of a file, a Pillow image, an array or a tensor, not a "
        f"{type(source).__name__}"
    )


def _read(file: Any) -> Any:
    """Return the content of an open file."""
    try:
        content = file.read()
    except (OSError, ValueError) as error:  # it is closed, or open for writing
        raise PhotoError(f"the open file cannot be read: {first_line(error)}") from error
    if not isinstance(content, bytes):
        raise InputError("the file is open for text: open it with mode 'rb'")
    return content


def _photo(
    image: Image.Image, name: str, stem: str, classifier: Classifier, question: InputQuestion
) -> Photo:
    classifier.preprocessing.scaled_size(image.size)
    return Photo(name, stem, image, question.targets, question.rather_than)


def _array_inputs(
    inputs: Sequence[Tensor],
    name: str,
    stem: str,
    question: InputQuestion,
    names: Sequence[str] | None,
) -> list[Photo | ArrayInput]:
    several = len(inputs) > 1
    return [
        ArrayInput(
            f"{name} row {number}" if several else name,
            f"{stem}-row-{number}" if several else stem,
            values,
            question.targets,
            question.rather_than,
            names=names,
            bands=question.bands,
        )
        for number, values in enumerate(inputs, 1)
    ]


def _as_image(array: numpy.ndarray, classifier: Classifier) -> Image.Image | numpy.ndarray:
    """Return an array as an image if it is that of a photo, for a model that takes photos."""
    is_photo = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in IMAGE_CHANNELS)
    if not is_photo or not takes_photos(classifier):
        return array
    if array.dtype != numpy.uint8:
        is_unit = array.dtype.kind == "f" and array.size and 0 <= array.min() <= array.max() <= 1
        if not is_unit:
            return array
        array = numpy.round(array * 255).astype(numpy.uint8)
    return Image.fromarray(array.squeeze(2) if array.ndim == 3 and array.shape[2] == 1 else array)


def _as_numbers(array: numpy.ndarray) -> numpy.ndarray:
    if array.dtype.kind not in "fiub":
        raise InputError(f"an input has numbers, not {array.dtype}")
    return numpy.ascontiguousarray(array, dtype=None if array.dtype.kind == "f" else numpy.float32)


def _checked(values: Tensor) -> Tensor:
    """Return a tensor of floating-point numbers that are finite."""
    if values.is_complex():
        raise InputError("an input has real numbers, not complex ones")
    if not values.is_floating_point():
        raise InputError(
            f"a tensor is given to the model as it is, and this one has whole numbers "
            f"({values.dtype}): give floating point, as the model takes it, or a photo as an array "
            "(height, width, 3)"
        )
    values = values.detach()
    if values.dim() == 0 or len(values) == 0:
        raise InputError(f"a tensor of shape {tuple(values.shape)} holds no input")
    if not values.isfinite().all():
        raise InputError("the input has values that are NaN or infinite")
    return values


@dataclass(frozen=True)
class ModelOptions:
    """What a user says about a model besides its name: the arguments of `dmbp.explain`."""

    weights: str | Path | None = None
    classes: Sequence[str] | str | Path | None = None
    preprocessing: Any = None
    activation: Literal["softmax", "sigmoid", "none"] | None = None
    prompts: Sequence[str] = ()
    device: str = "auto"
    untrained: bool = False


def has_random_weights(model: Any, options: ModelOptions) -> bool:
    """Return whether `load_classifier` gives a model random weights."""
    if isinstance(model, ModelSpec):
        return model.has_random_weights
    is_name = isinstance(model, str) and options.untrained and options.weights is None
    return is_name and is_architecture(cast("str", model))


def load_classifier(model: Any, options: ModelOptions) -> Classifier:
    """Return a model in any form, with its preprocessing and class names.

    Args:
        model: A name or file as `dmbp.models.load_model` takes it, None for the built-in model, a
            `ModelSpec`, or a module, a program or a `Classifier`, which is left where it is.
        options: What the user says about it.

    Raises:
        ModelError: If there is no such model.
        InputError: If the options do not go with it.
    """
    if isinstance(model, ModelSpec):
        return model.load()
    if model is None or isinstance(model, str | os.PathLike):
        return _load_by_name(None if model is None else str(model), options)
    if not isinstance(model, nn.Module | ExportedProgram | Classifier):
        raise ModelError(
            "a model is a name, a file, an nn.Module, an ExportedProgram or a Classifier, not a "
            f"{type(model).__name__}"
        )
    if options.weights is not None:
        raise InputError("weights are for models by name: load them into the module yourself")
    classifier = as_classifier(
        model,
        preprocessing=options.preprocessing,
        classes=_class_names(options.classes),
        activation=options.activation,
    )
    _check_device(classifier.module, options.device)
    return classifier.with_prompts(options.prompts) if options.prompts else classifier


def _load_by_name(name: str | None, options: ModelOptions) -> Classifier:
    settings, preprocessing = InputSettings(), options.preprocessing
    if isinstance(preprocessing, Mapping):  # so that a file's size may be among them
        as_preprocessing(preprocessing)
        settings = InputSettings(**cast("Mapping[str, Any]", preprocessing))
        preprocessing = None
    spec = ModelSpec(
        name,
        None if options.weights is None else Path(options.weights),
        device=options.device,
        untrained=options.untrained,
        inputs=settings,
        prompts=tuple(options.prompts),
    )
    return as_classifier(
        spec.load(),
        preprocessing=preprocessing,
        classes=_class_names(options.classes),
        activation=options.activation,
    )


def _class_names(classes: Sequence[str] | str | Path | None) -> Sequence[str] | None:
    return read_classes(Path(classes)) if isinstance(classes, str | Path) else classes


def _check_device(module: nn.Module, device: str) -> None:
    """Raise an `InputError` if a module of the user's would have to be moved."""
    own = next(module.parameters(), None)
    if device == AUTO or own is None or device.partition(":")[0] == own.device.type:
        return
    raise InputError(
        f"the model is on {own.device}, and dmbp does not move it: call model.to({device!r}) first"
    )


def check_preparation(
    classifier: Classifier, inputs: Sequence[Photo | ArrayInput], model: Any
) -> None:
    """Raise an `InputError` if there are photos for a module, but nobody said how to prepare them.

    For models by name, ImageNet's preprocessing is assumed, as on the command line.
    """
    is_own = isinstance(model, nn.Module | ExportedProgram)
    has_photos = any(isinstance(one, Photo) for one in inputs)
    if is_own and has_photos and not is_preparation_known(classifier):
        raise InputError(
            f"how photos are prepared for {classifier.name} is not known: {HOW_TO_SAY}; or give "
            "the prepared tensor in place of the photo"
        )


def asked_targets(target: Any) -> list[Asked]:
    """Return what a user asks as a list: one target, several, or none.

    Raises:
        TargetError: If something is no target.
    """
    if target is None:
        return []
    if isinstance(target, list):
        return [_asked(one) for one in cast("list[Any]", target)]
    return [_asked(target)]


def _asked(target: Any) -> Asked:
    if isinstance(target, str | NamedTarget):
        return target
    if isinstance(target, Mapping):
        weights = cast("Mapping[Any, float]", target)
        parts = [weight * _place(index) for index, weight in weights.items()]
        if not parts:
            raise TargetError("the target has no class: give weights such as {285: 1.0, 243: -1.0}")
        total: Any = parts[0]
        for part in parts[1:]:
            total = total + part
        return total
    if isinstance(target, tuple):
        return Value(cast("tuple[int, ...]", target))
    if isinstance(target, Tensor | numpy.ndarray):
        if target.size != 1 if isinstance(target, numpy.ndarray) else target.numel() != 1:
            raise TargetError(
                "a target for each photo is not taken: a list of targets is asked about every "
                "photo. Call this for each photo, or dmbp.DMBP(model).attribute(images, "
                "target=labels)"
            )
        target = target.item()
    if isinstance(target, SupportsIndex) and not isinstance(target, bool):
        return str(operator.index(target))
    if not callable(target):
        raise TargetError(
            "a target is a class's number or name, a list of them, or an object of dmbp.targets, "
            f"not {target!r:.60}"
        )
    return FunctionTarget(target)


def _place(index: Any) -> Any:
    return Value(index) if isinstance(index, tuple) else Class(index)


class FunctionTarget(NamedTarget):
    """A function of one image's outputs, in the model's own shape, that returns the score."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def bind(self, context: TargetContext) -> BoundTarget:  # noqa: ARG002
        """Return the target for an image."""
        return BoundTarget(self, function_name(self.function), score=self.function)

    @property
    def text(self) -> str:
        """The function's name."""
        return function_name(self.function)


def asked_classes(classes: Any) -> list[str]:
    """Return the classes to explain a target rather than, as a list."""
    given = classes if isinstance(classes, list | tuple) else [classes]
    return [str(k) for k in cast("Sequence[Any]", given) if k is not None]
