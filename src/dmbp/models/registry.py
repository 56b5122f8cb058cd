"""Every model that can be asked for by name."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from dmbp.errors import ModelError, WeightsError, suggestion
from dmbp.models import voc160 as embedded
from dmbp.models.classifier import Classifier
from dmbp.models.factory import factory_classifier
from dmbp.models.onnx.file import onnx_file_classifier
from dmbp.models.paper_networks import (
    keras_resnet50_classifier,
    resnet50_voc_caffe_classifier,
    resnet50_voc_classifier,
    vgg16_voc_caffe_classifier,
    vgg16_voc_classifier,
)
from dmbp.models.program_file import program_file_classifier
from dmbp.models.timm_models import PREFIX, timm_classifier, untrained_timm
from dmbp.models.torchvision_models import (
    torchvision_classifier,
    torchvision_names,
    untrained_torchvision,
)

Loader = Callable[[Path | None], Classifier]

DEFAULT = embedded.NAME

MODELS: Mapping[str, Loader] = {
    embedded.NAME: embedded.embedded_classifier,
    "resnet50-keras": keras_resnet50_classifier,
    "resnet50-voc": resnet50_voc_classifier,
    "vgg16-voc": vgg16_voc_classifier,
    "resnet50-voc-caffe": resnet50_voc_caffe_classifier,
    "vgg16-voc-caffe": vgg16_voc_caffe_classifier,
}
"""Models of our own, beside torchvision's; a new one is one file and one line here."""

FILES: Mapping[str, Callable[[Path], Classifier]] = {
    ".pt2": program_file_classifier,
    ".onnx": onnx_file_classifier,
}
"""Files that hold a whole model, by their ending."""

PUBLISHED = ("IMAGENET", "DEFAULT")
"""How names of torchvision's weights begin; a user's function, who may not need torchvision, has
another name."""


def load_model(
    name: str, *, weights: Path | None = None, classes: Path | None = None
) -> Classifier:
    """The model called `name`: ours, torchvision's, `timm:…`, a file, or a user's own.

    A user's is `package.module:factory`. Of torchvision's, `resnet50:IMAGENET1K_V1` names one of
    the weights that it publishes.
    """
    architecture, _, published = name.partition(":")
    if Path(name).suffix in FILES:
        classifier = _from_file(Path(name), weights)
    elif architecture == PREFIX and published:
        classifier = timm_classifier(published, weights)
    elif published.upper().startswith(PUBLISHED) and architecture in torchvision_names():
        if weights is not None:
            raise WeightsError(f"{name} names its weights already: leave out {weights}")
        classifier = torchvision_classifier(architecture, Path(published))
    elif ":" in name:
        classifier = factory_classifier(name, weights)
    elif name in MODELS:
        classifier = MODELS[name](weights)
    elif name in torchvision_names():
        classifier = torchvision_classifier(name, weights)
    else:
        hint = _of_weights(name) or suggestion(name, model_names())
        raise ModelError(f"there is no model {name!r}; {hint}")
    return classifier if classes is None else replace(classifier, classes=read_classes(classes))


def _of_weights(name: str) -> str | None:
    """What to do with a file of weights that is given for a model."""
    if Path(name).suffix not in (".pt", ".pth", ".bin", ".ckpt", ".safetensors"):
        return None
    return (
        "a file of weights does not say which network they are of: give its architecture with "
        f"--model, as resnet50 or my_module:make_model, and --weights {name}; or export the "
        "network to a .pt2 or .onnx file"
    )


def is_architecture(name: str) -> bool:
    """Whether torchvision or timm makes the model, with or without weights."""
    return name in torchvision_names() or name.startswith(f"{PREFIX}:")


def untrained_model(name: str) -> Classifier:
    """An architecture of torchvision's or timm's with random weights."""
    if name.startswith(f"{PREFIX}:"):
        return untrained_timm(name.removeprefix(f"{PREFIX}:"))
    return untrained_torchvision(name)


def _from_file(path: Path, weights: Path | None) -> Classifier:
    if weights is not None:
        raise WeightsError(f"{path} has its weights inside: leave out {weights}")
    if not path.is_file():
        raise ModelError(f"there is no model file {path}")
    return FILES[path.suffix](path)


def model_names() -> list[str]:
    """Every name that `load_model` knows, beside timm's, files and a user's own."""
    return [*MODELS, *torchvision_names()]


def read_classes(path: Path) -> tuple[str, ...]:
    """Class names from a text file, one a line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").rstrip().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WeightsError(f"cannot read class names from {path}: {error}") from error
    return tuple(line.strip() for line in lines)
