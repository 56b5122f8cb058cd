"""The planted networks as models of a plan: `model = "benchmarks.planted.models:cnn"`.

>>> cnn().preprocessing.crop
96
"""

from benchmarks.planted.images import CLASSES, SIDE
from benchmarks.planted.networks import NETWORKS
from dmbp.models import Classifier, Preprocessing


def cnn() -> Classifier:
    """Return the CNN, whose weights the plan names."""
    return _classifier("cnn")


def vit() -> Classifier:
    """Return the ViT, whose weights the plan names."""
    return _classifier("vit")


def _classifier(name: str) -> Classifier:
    seen = Preprocessing(resize=SIDE, crop=SIDE, fit="squeeze", mean=(0.5,) * 3, std=(0.25,) * 3)
    classes = tuple(f"class {k}" for k in range(CLASSES))
    module = NETWORKS[name].make().eval()
    return Classifier(f"planted {name}", module, seen, classes, activation="sigmoid")
