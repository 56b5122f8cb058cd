"""Recognises a model that the user made: how photos are prepared for it, and its class names.

Modules of torchvision, timm and `transformers` tell their architecture, and with it how photos are
prepared. For any other, the user says it, in one of the forms that `as_preprocessing` takes.

    >>> found = as_classifier(model, preprocessing={"size": 8, "mean": 0.5, "std": 0.5})
    >>> found.preprocessing.size
    (8, 8)
    >>> is_preparation_known(found), is_preparation_known(as_classifier(model))
    (True, False)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from torch import nn
from torch.export import ExportedProgram

from dmbp.errors import InputError, ModelError, suggestion
from dmbp.linear.model.wrappers import unwrapped
from dmbp.models import timm_models, torchvision_models
from dmbp.models.classifier import ASSUMED, ASSUMED_ORIGINS, Classifier, Preprocessing
from dmbp.models.exported_program import program_classifier
from dmbp.models.hugging_face import hugging_face_classifier, read_labels, read_preprocessing
from dmbp.models.input_settings import InputSettings
from dmbp.models.torchvision_tasks import adapted
from dmbp.models.transforms import read_transform
from dmbp.models.ultralytics_models import adapted_ultralytics

GIVEN = "the caller"
"""The origin of a preprocessing that the user gave."""

HOW_TO_SAY = (
    "give preprocessing=, such as the transform of your validation photos, weights.transforms() of "
    "torchvision, an image processor of transformers, or dmbp.models.Preprocessing(…)"
)


def as_classifier(
    model: Any,
    *,
    name: str | None = None,
    preprocessing: Any = None,
    classes: Sequence[str] | None = None,
    activation: Literal["softmax", "sigmoid", "none"] | None = None,
) -> Classifier:
    """Return a model with its preprocessing, class names and activation, as far as they are known.

    Args:
        model: A module, an exported program, or a `Classifier`.
        name: What to call it; by default its architecture or class.
        preprocessing: How photos become its input, as `as_preprocessing` takes it; by default what
            is known of the architecture. If nothing is, ImageNet's is assumed, and
            `is_preparation_known` is false.
        classes: The names of the classes; by default those that the model knows.
        activation: What turns outputs into probabilities; by default what the model says, or
            "softmax".

    Returns:
        The model; its module stays in the mode it is in.

    Raises:
        ModelError: If `model` is something else.
        InputError: If an argument has the wrong form, or the preprocessing cannot be expressed.
    """
    given = None if preprocessing is None else as_preprocessing(preprocessing)
    found = _recognised(model, name, given)
    if given is not None:
        origins = dict.fromkeys(ASSUMED_ORIGINS, GIVEN)
        found = replace(found, preprocessing=given, origins={**found.origins, **origins})
    if classes is not None:
        if isinstance(classes, str):
            raise InputError("classes are a list of names, in the order of the outputs, not a text")
        found = replace(found, classes=tuple(classes))
    if activation is not None:
        found = replace(found, activation=activation)
    return found


def is_preparation_known(classifier: Classifier) -> bool:
    """Return whether it is known how photos are prepared, or only assumed."""
    return classifier.origins.get("mean") != ASSUMED


def as_preprocessing(given: Any) -> Preprocessing:
    """Return a preprocessing that is given in any form.

    Args:
        given: A `Preprocessing`; a mapping with settings of `InputSettings`, such as
            `{"size": 224, "mean": 0.5, "std": 0.5}`; a transform of torchvision or timm; or an
            image processor of `transformers`.

    Raises:
        InputError: If it has another form, or prepares photos in a way that is not supported.
    """
    if isinstance(given, Preprocessing):
        return given
    if isinstance(given, Mapping):
        settings: Any = cast("Mapping[str, Any]", given)
        try:
            found = InputSettings(**settings)
        except TypeError as error:
            wrong = next(key for key in settings if key not in InputSettings.__annotations__)
            hint = suggestion(str(wrong), [*InputSettings.__annotations__])
            raise InputError(f"preprocessing has no setting {wrong!r}; {hint}") from error
        return found.change(Preprocessing())
    if hasattr(given, "to_dict") and hasattr(given, "preprocess"):
        return read_preprocessing(given)
    if callable(given):
        return read_transform(given)
    raise InputError(f"preprocessing={given!r:.60} has no form that is known: {HOW_TO_SAY}")


def _recognised(model: Any, name: str | None, given: Preprocessing | None) -> Classifier:
    """Return a model with what its architecture says; else ImageNet's preprocessing is assumed."""
    if isinstance(model, Classifier):
        if isinstance(model.module, ExportedProgram):
            return replace(model, module=program_classifier(model.module, model.name).module)
        return model
    module = unwrapped(model)
    if isinstance(module, ExportedProgram):
        return program_classifier(module, name or "the program")
    family = FAMILIES.get(type(module).__module__.partition(".")[0])
    found = None if family is None else family(module, given)
    if found is None:
        preprocessing = Preprocessing.for_channels(input_channels(module))
        label = type(module).__name__
        labels = read_labels(module)
        found = Classifier(label, module, preprocessing, labels, origins=ASSUMED_ORIGINS)
        found = adapted_ultralytics(adapted(found))
    return found if name is None else replace(found, name=name)


def input_channels(module: nn.Module) -> int:
    """Return the input channels of a network's first convolution, or 3 if it has none."""
    convolutions = (part for part in module.modules() if isinstance(part, nn.Conv2d))
    first = next(convolutions, None)
    return 3 if first is None else first.in_channels


def _of_torchvision(module: nn.Module, _: Preprocessing | None) -> Classifier | None:
    return torchvision_models.recognised(module)


def _of_timm(module: nn.Module, given: Preprocessing | None) -> Classifier | None:
    try:
        return timm_models.recognised(module)
    except ModelError:
        if given is None:
            raise
        return None


def _of_transformers(module: nn.Module, given: Preprocessing | None) -> Classifier | None:
    return hugging_face_classifier(module, given)


FAMILIES: Mapping[str, Callable[[nn.Module, Preprocessing | None], Classifier | None]] = {
    "torchvision": _of_torchvision,
    "timm": _of_timm,
    "transformers": _of_transformers,
}
"""Libraries whose modules are recognised, by the package that defines their classes. A row returns
None if it does not know the architecture."""
