"""Which model a command was asked to use, and where to run it."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dmbp.errors import InputError
from dmbp.models import DEFAULT, Classifier, is_architecture, load_model, untrained_model


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
