"""Loads models: a name, a file or a user's module becomes a `Classifier`.

`load_model(name)` in `registry.py` decides by the name which of these modules builds the model:

    classifier.py          `Classifier` and `Preprocessing`, which all of them return
    voc160.py              the small built-in model, used by default
    paper_networks.py      the paper's VOC networks and their stand-ins
    torchvision_models.py  torchvision's architectures, with published weights or a file's
    timm_models.py         timm's architectures, `timm:NAME`
    exported_program.py    programs of `torch.export`, `net.pt2`
    program/               reads the file of such a program without running code in it
    onnx/                  ONNX files, `net.onnx`; `onnx/operators` shows how to add an operator
    factory.py             a user's model, `package.module:factory`, or one of `transformers`
    state_dict.py          loads weights from a file into a module

To add a model with a name, write a function `(weights: Path | None) -> Classifier` and
add it to `MODELS` in `registry.py`; a new kind of model file is a line in `FILES` there.
"""

from dmbp.models.classifier import Classifier, Preprocessing
from dmbp.models.factory import hugging_face_classifier
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
    "Preprocessing",
    "hugging_face_classifier",
    "is_architecture",
    "load_model",
    "model_names",
    "untrained_model",
]
