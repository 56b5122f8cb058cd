"""Models by name, from files and from users' own code."""

from dmbp.models.classifier import Classifier, Preprocessing
from dmbp.models.table import DEFAULT, MODELS, load_model, model_names

__all__ = ["DEFAULT", "MODELS", "Classifier", "Preprocessing", "load_model", "model_names"]
