"""Which model a command was asked to use, and where to run it.

A photo, what the model says about it, and the classes asked about.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image
from torch import Tensor

from dmbp.errors import InputError
from dmbp.models import DEFAULT, Classifier, is_architecture, load_model, untrained_model
from dmbp.models.classifier import run_classifier
from dmbp.render.colour import Array
from dmbp.render.pictures import picture


@dataclass(frozen=True)
class ModelChoice:
    """A model's name (the one in the box by default), its files and its device.

    Where `untrained` will do, architectures without a file of weights get random ones.
    """

    model: str | None = None
    weights: Path | None = None
    classes: Path | None = None
    device: str = "cpu"
    untrained: bool = False

    def load(self) -> Classifier:
        """The model on its device."""
        device = self.place()
        name = self.model or DEFAULT
        if self.is_random:
            classifier = untrained_model(name)
        else:
            classifier = load_model(name, weights=self.weights, classes=self.classes)
        classifier.module.to(device)
        return replace(classifier, weights=None if self.weights is None else str(self.weights))

    @property
    def is_random(self) -> bool:
        """Whether the weights are random ones."""
        return self.untrained and self.weights is None and is_architecture(self.model or DEFAULT)

    def place(self) -> torch.device:
        """The device, if it is there."""
        try:
            device = torch.device(self.device)
            torch.zeros(1, device=device)
        except (RuntimeError, AssertionError) as error:
            said = str(error).splitlines()[0].partition(". ")[0][:100]
            raise InputError(f"device {self.device!r} is not available: {said}") from error
        if device.type == "meta":
            raise InputError("device 'meta' computes nothing; use cpu or cuda")
        return device


@dataclass(frozen=True)
class Prediction:
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


def predict(
    photo: Image.Image, name: str, classifier: Classifier, wanted: Sequence[str]
) -> Prediction:
    """Run the model on a photo and look up the classes wanted, or the top one."""
    view = classifier.preprocessing.view(photo)
    inputs = classifier.preprocessing.tensor(view)
    inputs = classifier.move_inputs(inputs)
    all_outputs, classifier = run_classifier(classifier, inputs)
    outputs = all_outputs[0]
    classifier.check_classes(outputs)
    asked = [classifier.class_index(text, outputs) for text in wanted] or [int(outputs.argmax())]
    targets = list(dict.fromkeys(asked))  # a number and a name may be one class
    return Prediction(name, view, classifier, inputs, outputs, targets)
