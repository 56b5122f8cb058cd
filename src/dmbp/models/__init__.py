"""Loads models: a name, a file or a user's module becomes a `Classifier`.

`load_model(name)` in `registry.py` decides by the name which of these modules builds the model:

    classifier.py          `Classifier` and `Preprocessing`, which all of them return
    voc160.py              the small built-in model, used by default
    paper_networks.py      the paper's VOC networks and their stand-ins
    torchvision_models.py  torchvision's architectures, with published weights or a file's
    timm_models.py         timm's architectures, `timm:NAME`
    open_clip_models.py    models of the package open_clip, `open_clip:NAME:WEIGHTS`
    ultralytics_models.py  models of the package ultralytics
    exported_program.py    programs of `torch.export`, `net.pt2`
    program/               reads the file of such a program without running code in it
    onnx/                  ONNX files, `net.onnx`; `onnx/operators` shows how to add an operator
    torchvision_tasks.py   its detectors and segmentations
    hugging_face/          models of `transformers`, `hf:NAME` or a folder
    factory.py             a user's model, `package.module:factory`
    modules.py             a module that the user made: what its architecture tells
    transforms.py          reads a preprocessing from the transform that a network was trained with
    input_settings.py      `InputSettings`: how photos are prepared, where a model does not say
    settings_files.py      reads such settings from files beside a model, `net.toml` and others
    json_files.py          reads JSON files beside a model
    class_names.py         reads the names of classes
    state_dict.py          loads weights from a file into a module

To add a model with a name, write a function `(weights: Path | None) -> Classifier` and
add it to `MODELS` in `registry.py`; a new kind of model file is a line in `FILES` there.
"""

from dmbp.models.classifier import Classifier, Preprocessing
from dmbp.models.exported_program import Ends
from dmbp.models.hugging_face import hugging_face_classifier
from dmbp.models.input_settings import InputSettings
from dmbp.models.modules import as_classifier, is_preparation_known
from dmbp.models.open_clip_models import open_clip_classifier
from dmbp.models.registry import (
    DEFAULT,
    MODELS,
    is_architecture,
    load_model,
    model_names,
    untrained_model,
)

__all__ = [
    "DEFAULT",
    "MODELS",
    "Classifier",
    "Ends",
    "InputSettings",
    "Preprocessing",
    "as_classifier",
    "hugging_face_classifier",
    "is_architecture",
    "is_preparation_known",
    "load_model",
    "model_names",
    "open_clip_classifier",
    "untrained_model",
]
