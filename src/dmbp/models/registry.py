"""Loads models by name: `load_model` turns the value of `--model` into a `Classifier`.

    net.pt2, net.onnx          a file with a whole model            `FILES`
    net.pt, net.jit, …         a TorchScript program                torchscript_file.py
    timm:resnet50.a1_in1k      a timm architecture                  timm_models.py
    hf:google/vit-…            a model of Hugging Face              hugging_face/
    open_clip:ViT-B-32:TAG     a model of open_clip                 open_clip_models.py
    ultralytics:yolov8n.pt     a model of ultralytics               ultralytics_models.py
    resnet50:IMAGENET1K_V1     torchvision with published weights   torchvision_models.py
    package.module:factory     a user's own function                factory.py
    voc160, resnet50-voc, …    a model of dmbp                      `MODELS`
    resnet50, …                a torchvision architecture           torchvision_models.py
    ./a-folder                 a folder of Hugging Face             hugging_face/

The first line that matches the name is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dmbp.errors import ModelError, WeightsError, suggestion
from dmbp.files import check_file, shown
from dmbp.models import (
    hugging_face,
    open_clip_models,
    timm_models,
    ultralytics_models,
    voc160,
)
from dmbp.models.classifier import Classifier
from dmbp.models.exported_program import ChannelsLast, Ends, StatedInput, program_file_classifier
from dmbp.models.factory import factory_classifier
from dmbp.models.hugging_face import hugging_face_model, is_model_folder
from dmbp.models.input_settings import OPTIONS, InputSettings, SettingsLayer, as_size
from dmbp.models.onnx.file import onnx_file_classifier
from dmbp.models.open_clip_models import open_clip_model
from dmbp.models.paper_networks import (
    keras_resnet50_classifier,
    resnet50_voc_caffe_classifier,
    resnet50_voc_classifier,
    vgg16_voc_caffe_classifier,
    vgg16_voc_classifier,
)
from dmbp.models.settings_files import layers_beside
from dmbp.models.text_files import read_classes
from dmbp.models.timm_models import timm_classifier, untrained_timm
from dmbp.models.torchscript_file import SUFFIXES, is_torchscript, torchscript_file_classifier
from dmbp.models.torchvision_models import (
    torchvision_classifier,
    torchvision_names,
    untrained_torchvision,
)
from dmbp.models.ultralytics_models import ultralytics_classifier

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

FILES: Mapping[str, Callable[[Path, bool, StatedInput], Classifier]] = {
    ".pt2": lambda path, trust, stated: program_file_classifier(path, trust=trust, stated=stated),
    # ONNX files cannot contain code, so none is trusted.
    ".onnx": lambda path, _, stated: onnx_file_classifier(path, stated),
}
"""Readers of files with a whole model, by suffix. Their second argument is `trust_model_file`, the
third what is said about the input outside the file."""

WEIGHTS_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")

PUBLISHED = ("IMAGENET", "DEFAULT")
"""Prefixes of the names of torchvision's weights. torchvision is imported only for a name with one
of them, because a user's factory may run without it."""


def load_model(
    name: str,
    *,
    weights: Path | None = None,
    classes: Path | None = None,
    trust_model_file: bool = False,
    inputs: InputSettings | None = None,
    ends: Ends | None = None,
) -> Classifier:
    """Load a model by name, like the option `--model` of every command.

    Args:
        name: One of `model_names()`; `timm:NAME`; `hf:NAME` or a folder for a model of Hugging
            Face; `open_clip:NAME:WEIGHTS`; `ultralytics:NAME`; a torchvision architecture with
            weights it publishes, such as
            `resnet50:IMAGENET1K_V1`; a `.pt2`, `.onnx` or TorchScript file; or a user's own
            `package.module:factory`.
        weights: A file of weights, or a folder for models that need several files. By default the
            model's published weights are used, and downloaded if necessary.
        classes: A text file of class names, one per line, in the order of the outputs.
        trust_model_file: Let torch load a TorchScript file, or a `.pt2` file that dmbp cannot read
            as plain data. Such a file may run any code.
        inputs: How photos are prepared, where that differs from what the model, or files beside it,
            say.
        ends: Which inputs and outputs of an ONNX file are meant, if it has several.

    Returns:
        The model in evaluation mode, with its preprocessing and class names.

    Raises:
        InputError: If `inputs`, or a TOML file beside the model, do not go with the model.
        ModelError: If there is no such model, or it cannot be built.
        WeightsError: If weights are missing, unreadable, or do not fit the model.
    """
    if not name.strip():
        raise ModelError(f"the model's name is empty; give one, or none at all for {DEFAULT}")
    architecture, _, published = name.partition(":")
    inputs = inputs or InputSettings()
    is_file = Path(name).suffix in FILES or is_torchscript(Path(name))
    ends = ends or Ends()
    if ends.are_given and not is_file:
        raise ModelError(f"{shown(name)} is no ONNX file, so its inputs and outputs have no names")
    if is_file:
        classifier = _load_file(Path(name), weights, trust_model_file, inputs, ends)
    elif architecture == timm_models.PREFIX and published:
        classifier = timm_classifier(published, weights)
    elif architecture == hugging_face.PREFIX and ":" in name:
        classifier = _load_hugging_face(published, weights, inputs)
    elif architecture == open_clip_models.PREFIX and published:
        classifier = open_clip_model(published, weights)
    elif architecture == ultralytics_models.PREFIX and published:
        if weights is not None:
            raise WeightsError(f"{name} has its weights inside: leave out {weights}")
        classifier = ultralytics_classifier(published, trust=trust_model_file)
    elif published.upper().startswith(PUBLISHED) and architecture in torchvision_names():
        if weights is not None:
            raise WeightsError(f"{name} names its weights already: leave out {weights}")
        classifier = torchvision_classifier(architecture, Path(published))
    elif ":" in name:
        classifier = factory_classifier(name, weights)
    elif name in MODELS:
        classifier = MODELS[name](weights)
    elif name in torchvision_names() or "rcnn" in name:
        classifier = torchvision_classifier(name, weights)
    elif is_model_folder(name):
        classifier = _load_hugging_face(name, weights, inputs)
    else:
        hint = _file_hint(name) or suggestion(name, model_names())
        raise ModelError(f"there is no model {shown(name)!r}; {hint}")
    if not is_file:
        classifier = _with_layout(classifier, inputs)
    names = None if classes is None else read_classes(classes)
    return SettingsLayer(OPTIONS, inputs, names).apply(classifier)


def _with_layout(classifier: Classifier, inputs: InputSettings) -> Classifier:
    """Return a classifier that takes torch's images, whichever layout its module takes."""
    if inputs.layout != "nhwc":
        return classifier
    return replace(classifier, module=ChannelsLast(classifier.module))


def model_names() -> list[str]:
    """Return the names of dmbp's models and of torchvision's."""
    return [*MODELS, *torchvision_names()]


def is_architecture(name: str) -> bool:
    """Return whether torchvision or timm can build the model without weights."""
    return name in torchvision_names() or name.startswith(f"{timm_models.PREFIX}:")


def untrained_model(name: str, *, inputs: InputSettings | None = None) -> Classifier:
    """Return an architecture of torchvision or timm with random weights.

    Args:
        name: A name for which `is_architecture` is true.
        inputs: As for `load_model`.

    Returns:
        The model in evaluation mode, with the preprocessing of its published weights.
    """
    prefix = f"{timm_models.PREFIX}:"
    if name.startswith(prefix):
        classifier = untrained_timm(name.removeprefix(prefix))
    else:
        classifier = untrained_torchvision(name)
    inputs = inputs or InputSettings()
    return SettingsLayer(OPTIONS, inputs).apply(_with_layout(classifier, inputs))


def _load_hugging_face(name: str, weights: Path | None, inputs: InputSettings) -> Classifier:
    if weights is not None:
        raise WeightsError(f"{name} has its weights beside its config: leave out {weights}")
    is_stated = None not in (inputs.size, inputs.mean, inputs.std)
    return hugging_face_model(name, assume_preprocessing=is_stated)


def _load_file(
    path: Path, weights: Path | None, trust: bool, inputs: InputSettings, ends: Ends
) -> Classifier:
    """Return the model in a file, with what the files beside it say about its input."""
    if weights is not None:
        raise WeightsError(f"{path} has its weights inside: leave out {weights}")
    check_file(path, what="model file", error=ModelError)
    layers = layers_beside(path)
    for layer in reversed(layers):
        ends = ends.before(layer.ends)
    if ends.are_given and path.suffix != ".onnx":
        raise ModelError(f"{shown(path)} is no ONNX file, so its inputs and outputs have no names")
    conventional = [layer.settings.size for layer in layers if layer.conventional]
    stated = [*(layer.settings for layer in layers if not layer.conventional), inputs]
    form = StatedInput(
        size=as_size(_last(settings.size for settings in stated)),
        default_size=as_size(_last(conventional)),
        layout=_last(settings.layout for settings in stated),
        ends=ends,
    )
    if path.suffix in FILES:
        classifier = FILES[path.suffix](path, trust, form)
    else:
        classifier = torchscript_file_classifier(path, trust=trust)
        if form.layout == "nhwc":
            classifier = replace(classifier, module=ChannelsLast(classifier.module))
    for layer in layers:
        classifier = layer.apply(classifier)
    return classifier


def _last(values: Iterable[Any]) -> Any:
    """Return the last value that is not None, or None."""
    return next((value for value in reversed([*values]) if value is not None), None)


def _file_hint(name: str) -> str | None:
    """Return advice if the name is that of a file of weights, or of any other file, else None."""
    if Path(name).suffix in SUFFIXES and Path(name).suffix not in WEIGHTS_SUFFIXES:
        return "there is no such file, or it is not one that torch.jit.save wrote"
    if Path(name).suffix not in WEIGHTS_SUFFIXES:
        is_other = Path(name).is_file()
        return "this file is none: models end in .pt2, .onnx or .pt" if is_other else None
    return (
        "a file of weights does not say which network they belong to: give its architecture with "
        f"--model, such as resnet50 or my_module:make_model, and --weights {shown(name)}; or "
        "export the network to a .pt2 or .onnx file"
    )
