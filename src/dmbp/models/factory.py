"""Loads a user's model, named `package.module:factory` on the command line.

The name refers to a function without arguments, or directly to what such a function returns: an
`nn.Module`, a program of `torch.export`, or a `dmbp.models.Classifier` with one of these, which
also defines the preprocessing and the class names. `hugging_face_classifier` in `hugging_face/`
returns such a classifier for a model of Hugging Face's `transformers`.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from dmbp.errors import ModelError
from dmbp.linear.model.wrappers import force_eval
from dmbp.models.classifier import Classifier
from dmbp.models.modules import as_classifier
from dmbp.models.state_dict import load_state_dict, read_state_dict
from dmbp.models.torchvision_models import import_torchvision


def factory_classifier(name: str, weights: Path | None) -> Classifier:
    """Return the model of a factory as a classifier, with the weights of a file if one is given.

    Raises:
        ModelError: If the module cannot be imported, or the factory is missing, raises an exception
            or returns something else.
        WeightsError: If the weights do not fit.
    """
    factory = _import_attribute(name)
    is_model = isinstance(factory, nn.Module | ExportedProgram | Classifier)
    classifier = _as_classifier(factory if is_model else _call(factory, name), name)
    if weights is not None:
        load_state_dict(classifier.module, read_state_dict(weights), str(weights))
    force_eval(classifier.module)
    return classifier


def _import_attribute(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ModelError(f"{name!r} is not of the form package.module:factory")
    _check_no_file(module_name, attribute, name)
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    if torch.version.cuda is None:  # transformers cannot import torchvision with a CPU build
        with suppress(ImportError):
            import_torchvision()
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise ModelError(f"cannot import {module_name!r}: {error}") from error
    except (Exception, SystemExit) as error:
        raise ModelError(f"{module_name!r} raised {_describe(error)} on import") from error
    factory = getattr(module, attribute, None)
    if not callable(factory) and not isinstance(factory, ExportedProgram | Classifier):
        raise ModelError(f"{module_name!r} has no function {attribute!r}")
    return factory


def _check_no_file(module_name: str, attribute: str, name: str) -> None:
    """Raise a `ModelError` if the module is given as a path instead of a name."""
    if not module_name.endswith(".py") and "/" not in module_name:
        return
    file = Path(module_name).with_suffix("")
    is_inside = not file.is_absolute() and ".." not in file.parts
    where = "" if is_inside else f" in the folder {file.parent}"
    dotted = ".".join(file.parts) if is_inside else file.name
    raise ModelError(f"{name!r} names a file; write the module's name{where}, {dotted}:{attribute}")


def _call(factory: Any, name: str) -> Any:
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise ModelError(f"{name} raised {_describe(error)}") from error


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _as_classifier(model: Any, name: str) -> Classifier:
    module: Any = model.module if isinstance(model, Classifier) else model
    if not isinstance(module, nn.Module | ExportedProgram):
        raise ModelError(
            f"{name} returned a {type(model).__name__}, not an nn.Module or a "
            "dmbp.models.Classifier"
        )
    return (
        as_classifier(model) if isinstance(model, Classifier) else as_classifier(model, name=name)
    )
