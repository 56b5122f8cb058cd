"""Loads models by name: `load_model` turns the value of `--model` into a `Classifier`.

    net.pt2, net.onnx          a file with a whole model            `FILES`
    net.pt, net.jit, …         a TorchScript program                torchscript_file.py
    timm:resnet50.a1_in1k      a timm architecture                  timm_models.py
    resnet50:IMAGENET1K_V1     torchvision with published weights   torchvision_models.py
    package.module:factory     a user's own function                factory.py
    voc160, resnet50-voc, …    a model of dmbp                      `MODELS`
    resnet50, …                a torchvision architecture           torchvision_models.py

The first line that matches the name is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from dmbp.errors import ModelError, WeightsError, suggestion
from dmbp.files import check_file, printable, read_text, shown
from dmbp.models import voc160
from dmbp.models.classifier import Classifier
from dmbp.models.exported_program import program_file_classifier
from dmbp.models.factory import factory_classifier
from dmbp.models.onnx.file import onnx_file_classifier
from dmbp.models.paper_networks import (
    keras_resnet50_classifier,
    resnet50_voc_caffe_classifier,
    resnet50_voc_classifier,
    vgg16_voc_caffe_classifier,
    vgg16_voc_classifier,
)
from dmbp.models.timm_models import PREFIX, timm_classifier, untrained_timm
from dmbp.models.torchscript_file import SUFFIXES, is_torchscript, torchscript_file_classifier
from dmbp.models.torchvision_models import (
    torchvision_classifier,
    torchvision_names,
    untrained_torchvision,
)

Loader = Callable[[Path | None], Classifier]
"""Returns a classifier with the weights of a file or folder, or with its default weights."""

DEFAULT = voc160.NAME

MODELS: Mapping[str, Loader] = {
    voc160.NAME: voc160.embedded_classifier,
    "resnet50-keras": keras_resnet50_classifier,
    "resnet50-voc": resnet50_voc_classifier,
    "vgg16-voc": vgg16_voc_classifier,
    "resnet50-voc-caffe": resnet50_voc_caffe_classifier,
    "vgg16-voc-caffe": vgg16_voc_caffe_classifier,
}
"""dmbp's models by name. To add one, write a `Loader` in this folder and add a line here."""

FILES: Mapping[str, Callable[[Path, bool], Classifier]] = {
    ".pt2": lambda path, trust: program_file_classifier(path, trust=trust),
    ".onnx": lambda path, _: onnx_file_classifier(path),  # ONNX files cannot contain code
}
"""Readers of files with a whole model, by suffix. Their second argument is `trust_model_file`."""

WEIGHTS_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")

MAX_CLASSES_BYTES = 2**24
"""The largest file of class names; ImageNet's 21 841 names are 0.5 MB."""

LONGEST_CLASS = 1000
"""The most characters of a class's name; drawing longer ones takes minutes."""

PUBLISHED = ("IMAGENET", "DEFAULT")
"""Prefixes of the names of torchvision's weights. torchvision is imported only for a name with one
of them, because a user's factory may run without it."""


def load_model(
    name: str,
    *,
    weights: Path | None = None,
    classes: Path | None = None,
    trust_model_file: bool = False,
) -> Classifier:
    """Load a model by name, like the option `--model` of every command.

    Args:
        name: One of `model_names()`; `timm:NAME`; a torchvision architecture with weights it
            publishes, such as `resnet50:IMAGENET1K_V1`; a `.pt2`, `.onnx` or TorchScript file; or a
            user's own `package.module:factory`.
        weights: A file of weights, or a folder for models that need several files. By default the
            model's published weights are used, and downloaded if necessary.
        classes: A text file of class names, one per line, in the order of the outputs.
        trust_model_file: Let torch load a TorchScript file, or a `.pt2` file that dmbp cannot read
            as plain data. Such a file may run any code.

    Returns:
        The model in evaluation mode, with its preprocessing and class names.

    Raises:
        ModelError: If there is no such model, or it cannot be built.
        WeightsError: If weights are missing, unreadable, or do not fit the model.
    """
    if not name.strip():
        raise ModelError(f"the model's name is empty; give one, or none at all for {DEFAULT}")
    architecture, _, published = name.partition(":")
    if Path(name).suffix in FILES or is_torchscript(Path(name)):
        classifier = _load_file(Path(name), weights, trust_model_file)
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
        hint = _weights_file_hint(name) or suggestion(name, model_names())
        raise ModelError(f"there is no model {shown(name)!r}; {hint}")
    return classifier if classes is None else replace(classifier, classes=read_classes(classes))


def model_names() -> list[str]:
    """Return the names of dmbp's models and of torchvision's classifiers."""
    return [*MODELS, *torchvision_names()]


def is_architecture(name: str) -> bool:
    """Return whether torchvision or timm can build the model without weights."""
    return name in torchvision_names() or name.startswith(f"{PREFIX}:")


def untrained_model(name: str) -> Classifier:
    """Return an architecture of torchvision or timm with random weights.

    Args:
        name: A name for which `is_architecture` is true.

    Returns:
        The model in evaluation mode, with the preprocessing of its published weights.
    """
    if name.startswith(f"{PREFIX}:"):
        return untrained_timm(name.removeprefix(f"{PREFIX}:"))
    return untrained_torchvision(name)


def read_classes(path: Path) -> tuple[str, ...]:
    """Read class names from a text file with one per line."""
    text = read_text(path, what="file of classes", error=WeightsError, most_bytes=MAX_CLASSES_BYTES)
    names = tuple(printable(line.strip()) for line in text.rstrip().splitlines())
    for number, name in enumerate(names, 1):
        if len(name) > LONGEST_CLASS:
            raise WeightsError(
                f"line {number} of {shown(path)} has {len(name):,} characters, which is no class's "
                "name"
            )
    return names


def _load_file(path: Path, weights: Path | None, trust: bool) -> Classifier:
    if weights is not None:
        raise WeightsError(f"{path} has its weights inside: leave out {weights}")
    check_file(path, what="model file", error=ModelError)
    if path.suffix in FILES:
        return FILES[path.suffix](path, trust)
    return torchscript_file_classifier(path, trust=trust)


def _weights_file_hint(name: str) -> str | None:
    """Return advice if the name is that of a file of weights, else None."""
    if Path(name).suffix in SUFFIXES and Path(name).suffix not in WEIGHTS_SUFFIXES:
        return "there is no such file, or it is not one that torch.jit.save wrote"
    if Path(name).suffix not in WEIGHTS_SUFFIXES:
        return None
    return (
        "a file of weights does not say which network they belong to: give its architecture with "
        f"--model, such as resnet50 or my_module:make_model, and --weights {shown(name)}; or "
        "export the network to a .pt2 or .onnx file"
    )
