"""A user's own model: `package.module:factory`, a function without arguments, or what it returns.

It returns an `nn.Module` or a program of `torch.export`, or a `dmbp.models.Classifier` of one where
preprocessing or class names matter.
"""

import sys
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from dmbp.errors import ModelError
from dmbp.linear.model.wrappers import force_eval
from dmbp.models.classifier import Classifier, Preprocessing
from dmbp.models.hugging_face import labels_of
from dmbp.models.program_file import program_classifier
from dmbp.models.state_dict import fit, read_state
from dmbp.models.torchvision_models import import_torchvision


def factory_classifier(name: str, weights: Path | None) -> Classifier:
    """What the factory makes, with the weights of a file if one is given."""
    found = _find(name)
    is_made = isinstance(found, nn.Module | ExportedProgram | Classifier)
    classifier = _classifier(found if is_made else _call(found, name), name)
    if weights is not None:
        fit(classifier.module, read_state(weights), str(weights))
    force_eval(classifier.module)
    return classifier


def _classifier(made: Any, name: str) -> Classifier:
    module: Any = made.module if isinstance(made, Classifier) else made
    if isinstance(module, ExportedProgram):
        program = program_classifier(module, name)
        return replace(made, module=program.module) if isinstance(made, Classifier) else program
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"{name} returned a {type(made).__name__}, not an nn.Module or a dmbp.models.Classifier"
        )
    if isinstance(made, Classifier):
        return made
    preprocessing = Preprocessing.for_channels(_channels(module))
    return Classifier(name, module, preprocessing, classes=labels_of(module))


def _channels(module: nn.Module) -> int:
    """The channels that a network's first convolution reads."""
    convolutions = (part for part in module.modules() if isinstance(part, nn.Conv2d))
    first = next(convolutions, None)
    return 3 if first is None else first.in_channels


def _find(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ModelError(f"{name!r} is not of the form package.module:factory")
    if module_name.endswith(".py") or "/" in module_name:
        file = Path(module_name).with_suffix("")
        inside = not file.is_absolute() and ".." not in file.parts
        where = "" if inside else f" in the folder {file.parent}"
        written = ".".join(file.parts) if inside else file.name
        raise ModelError(
            f"{name!r} names a file; write the module's name{where}, {written}:{attribute}"
        )
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    if torch.version.cuda is None:  # where transformers cannot import torchvision without help
        with suppress(ImportError):
            import_torchvision()
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise ModelError(f"cannot import {module_name!r}: {error}") from error
    except (Exception, SystemExit) as error:
        raise ModelError(f"{module_name!r} raised {_said(error)} on import") from error
    factory = getattr(module, attribute, None)
    if not callable(factory) and not isinstance(factory, ExportedProgram | Classifier):
        raise ModelError(f"{module_name!r} has no function {attribute!r}")
    return factory


def _call(factory: Any, name: str) -> Any:
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise ModelError(f"{name} raised {_said(error)}") from error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
