"""A photo, what the model says about it, and the classes asked about."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from PIL import Image
from torch import Tensor

from dmbp.models import Classifier
from dmbp.models.own_probabilities import outputs_of
from dmbp.render.colour import Array
from dmbp.render.pictures import picture


@dataclass(frozen=True)
class PhotoQuestion:
    """A photo as the model saw it, its input (1, 3, height, width), its outputs (classes,).

    `targets` are the classes asked about.
    """

    name: str
    view: Image.Image
    classifier: Classifier
    inputs: Tensor
    outputs: Tensor
    targets: list[int]

    @property
    def photo(self) -> Array:
        """The view as RGB in [0, 1]."""
        return numpy.asarray(self.view, dtype=numpy.float64) / 255

    def verdict(self) -> str:
        """The prediction; where classes do not compete and none is likely, there is none.

        A single output says yes or no.
        """
        if len(self.outputs) == 1 and self.probability(0) < 0.5:
            return f"predicted not {self.classifier.class_name(0)} ({1 - self.probability(0):.0%})"
        sure = self.classifier.is_exclusive(self.outputs) or self.probability(self.best) >= 0.5
        return f"{'predicted' if sure else 'nothing sure, most likely'} {self.named(self.best)}"

    @property
    def best(self) -> int:
        """The class with the highest output."""
        return int(self.outputs.argmax())

    def probability(self, index: int) -> float:
        """The probability of a class."""
        return float(self.classifier.probabilities(self.outputs)[index])

    def named(self, index: int) -> str:
        """A class with its probability."""
        return f"{self.classifier.class_name(index)} ({self.probability(index):.0%})"

    def slug(self, index: int) -> str:
        """The class in a file's name; its number too, for two classes may share a name."""
        words = re.sub(r"[^a-z0-9]+", "-", self.classifier.class_name(index).lower())
        return f"{index}-{words}".strip("-")

    def about(self, index: int) -> dict[str, Any]:
        """A class as a record."""
        return {
            "class": index,
            "name": self.classifier.class_name(index),
            "probability": self.probability(index),
        }

    def shown(self, image: Tensor) -> Array:
        """An input as a picture again: RGB in [0, 1]."""
        preprocessing = self.classifier.preprocessing
        return picture(image) * numpy.array(preprocessing.std) + numpy.array(preprocessing.mean)


def ask(
    photo: Image.Image, name: str, classifier: Classifier, wanted: Sequence[str]
) -> PhotoQuestion:
    """Run the model on a photo and look up the classes wanted, or the top one."""
    view = classifier.preprocessing.view(photo)
    inputs = classifier.preprocessing.tensor(view)
    inputs = classifier.placed(inputs)
    all_outputs, classifier = outputs_of(classifier, inputs)
    outputs = all_outputs[0]
    classifier.check_classes(outputs)
    asked = [classifier.class_index(text, outputs) for text in wanted] or [int(outputs.argmax())]
    targets = list(dict.fromkeys(asked))  # a number and a name may be one class
    return PhotoQuestion(name, view, classifier, inputs, outputs, targets)
