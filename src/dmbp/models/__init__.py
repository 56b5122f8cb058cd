"""Models by name, from files and from users' own code."""

from dmbp.models.classifier import Classifier, Preprocessing
from dmbp.models.hugging_face import hugging_face_classifier
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
