"""A model's prediction for one photo, which every command starts from.

A `ModelSpec` says which model to load and where to run it. `predict` runs the loaded model on a
photo; the `Prediction` it returns holds the photo as the model saw it, the model's outputs and what
to explain. Places that a user names, such as a region's box, are in pixels of the photo;
`photo_context` translates them to the model's input.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image
from torch import Tensor

from dmbp import __version__
from dmbp.data import read_photo
from dmbp.devices import find_device, in_float64
from dmbp.errors import InputError, TargetError
from dmbp.linear.targets import read_target
from dmbp.models import DEFAULT, Classifier, is_architecture, load_model, untrained_model
from dmbp.models.classifier import Frame, Preprocessing, move_module, run_model
from dmbp.models.exported_program import Ends
from dmbp.models.input_settings import InputSettings
from dmbp.render.colour import Array
from dmbp.render.pictures import stretch_bands, to_picture
from dmbp.targets import TargetContext, output_kind
from dmbp.targets.boxes import LAYOUT
from dmbp.workflows.explained_target import (
    Asked,
    ExplainedTarget,
    NamedClass,
    explained_targets,
)


@dataclass(frozen=True)
class ModelSpec:
    """Which model to load, from which files, and where to run it.

    `model` is a name as `dmbp.models.load_model` takes it; None is the built-in model. The device
    "auto" is the best one of the machine.
    With `untrained`, an architecture without a weights file gets random weights.
    With `trust_model_file`, a `.pt2` file may run code. `inputs` says how photos are prepared,
    where that differs from what the model says, and `ends` which inputs and outputs are meant.
    `prompts` are texts that a model of images and texts compares photos with.
    """

    model: str | None = None
    weights: Path | None = None
    classes: Path | None = None
    device: str = "cpu"
    untrained: bool = False
    trust_model_file: bool = False
    inputs: InputSettings = field(default_factory=InputSettings)
    ends: Ends = field(default_factory=Ends)
    prompts: tuple[str, ...] = ()

    def load(self) -> Classifier:
        """Load the model onto its device."""
        device = self.torch_device
        name = self._name
        if self.has_random_weights:
            classifier = untrained_model(name, inputs=self.inputs)
        else:
            classifier = load_model(
                name,
                weights=self.weights,
                classes=self.classes,
                trust_model_file=self.trust_model_file,
                inputs=self.inputs,
                ends=self.ends,
            )
        if self.prompts:
            classifier = classifier.with_prompts(self.prompts)
        move_module(classifier.module, device)
        return replace(classifier, weights=None if self.weights is None else str(self.weights))

    @property
    def _name(self) -> str:
        return DEFAULT if self.model is None else self.model

    @property
    def has_random_weights(self) -> bool:
        """Whether the model gets random weights."""
        return self.untrained and self.weights is None and is_architecture(self._name)

    @cached_property
    def torch_device(self) -> torch.device:
        """The device, after a check that it is available; "auto" is the best one."""
        return find_device(self.device)


@dataclass(frozen=True)
class InputPrediction:
    """What a model says about an input, and what to explain about it.

    `inputs` is (1, …), for photos (1, channels, height, width), and `outputs` has the model's own
    shape, (classes,) for a classifier. `context` is what targets know about the input.
    """

    name: str
    classifier: Classifier
    inputs: Tensor
    context: TargetContext
    targets: Sequence[ExplainedTarget] = ()

    @property
    def outputs(self) -> Tensor:
        """The model's outputs."""
        return self.context.outputs

    @property
    def gives_classes(self) -> bool:
        """Whether the model gives a score for each class."""
        return self.outputs.dim() == 1 and not self.classifier.is_encoder

    @property
    def top_class(self) -> NamedClass:
        """The class with the highest output."""
        return NamedClass.of(self.classifier, self.outputs, int(self.outputs.argmax()))

    def verdict(self, *, decimals: int = 0) -> str:
        """Return what the model predicts, in words, with so many decimals.

        If several classes may be present and none has a probability of at least one half, the
        verdict says that nothing is sure. A model with a single output answers yes or no.
        """
        if not self.gives_classes:
            return self._other_verdict(decimals)
        top = self.top_class
        if len(self.outputs) == 1 and top.probability < 0.5:
            return f"predicted not {top.name} ({1 - top.probability:.{decimals}%})"
        is_sure = self.classifier.is_single_label(self.outputs) or top.probability >= 0.5
        words = "predicted" if is_sure else "nothing sure, most likely"
        return f"{words} {top.label(decimals=decimals)}"

    def _other_verdict(self, decimals: int) -> str:
        """Return what a model says that is no classifier."""
        if self.classifier.is_encoder:
            return f"embedded in {len(self.outputs)} numbers"
        try:
            return output_kind(self.context).verdict(self.context, decimals)
        except TargetError:
            shape = "×".join(map(str, self.outputs.shape))
            return f"gave outputs of {shape}"

    def record(self) -> dict[str, Any]:
        """Return what the model predicts, for a JSON file."""
        if self.gives_classes:
            return self.top_class.record()
        return {"said": self.verdict()}

    @property
    def has_independent_classes(self) -> bool:
        """Whether several classes may be present, so that probabilities need not add up to 1."""
        is_several = self.gives_classes and len(self.outputs) > 1
        return self.classifier.activation == "sigmoid" and is_several

    def curve_value(self, target: ExplainedTarget, outputs: Tensor) -> float:
        """Return what a target's insertion curve shows at outputs of the model."""
        flat = outputs.flatten()[None]
        rows = read_target(target.likely, outputs=flat, shape=tuple(outputs.shape))
        return float(rows.scores(flat, self.classifier.probabilities))


@dataclass(frozen=True)
class Prediction(InputPrediction):
    """What a model says about a photo, and what to explain about it.

    `original` is the whole photo and `view` what the model saw of it.
    """

    original: Image.Image = field(kw_only=True)
    view: Image.Image = field(kw_only=True)

    @property
    def frame(self) -> Frame:
        """The part of the photo that the model saw."""
        return self.classifier.preprocessing.frame(self.original.size)

    @property
    def photo(self) -> Array:
        """The view as an array (height, width, 3) of values in [0, 1].

        The contrast of an image of 16 bits is stretched: few use their whole range.
        """
        pixels = numpy.asarray(self.view, dtype=numpy.float64)
        if self.view.mode == "F":
            return stretch_bands(torch.from_numpy(pixels)[None])
        return pixels / 255

    def denormalise(self, image: Tensor) -> Array:
        """Turn an input (channels, height, width) back into a picture: RGB in [0, 1]."""
        return to_picture(self.classifier.preprocessing.denormalise(in_float64(image.detach())))


def predict(
    photo: Image.Image,
    name: str,
    classifier: Classifier,
    targets: Sequence[Asked],
    *,
    rather_than: Sequence[str] = (),
) -> Prediction:
    """Run the model on a photo, and look up what to explain.

    `targets` are numbers or names of classes, or texts such as `region:cat@box=40,30,90,120`; if
    there are none, the top class is explained, or what `OutputKind.default` says. `rather_than` are
    the classes that each is compared with, or "rivals".
    """
    prediction = run_on_photo(photo, name, classifier)
    asked = explained_targets(prediction.classifier, prediction.context, targets, rather_than)
    return replace(prediction, targets=asked)


def run_on_photo(photo: Image.Image, name: str, classifier: Classifier) -> Prediction:
    """Run the model on a photo; the prediction has no targets yet."""
    if classifier.input_shape is not None:
        raise InputError(
            f"{classifier.name} takes inputs of shape {classifier.input_shape}, not photos: give "
            "an array (.npy), a table or a signal (.csv) or a scan (.nii, .dcm) of that shape"
        )
    return run_on_view(classifier.preprocessing.view(photo), photo, name, classifier)


def run_on_view(
    view: Image.Image, photo: Image.Image, name: str, classifier: Classifier
) -> Prediction:
    """Run the model on what it sees of a photo, of which only the size is used."""
    inputs = classifier.move_inputs(classifier.preprocessing.tensor(view))
    batch_outputs, classifier = run_model(classifier, inputs)
    outputs = batch_outputs[0]
    if outputs.dim() == 1:
        classifier.check_classes(outputs)
    context = photo_context(classifier, outputs, photo, tuple(inputs.shape[2:]))
    return Prediction(name, classifier, inputs, context, original=photo, view=view)


def photo_context(
    classifier: Classifier, outputs: Tensor, photo: Image.Image, size: tuple[int, ...]
) -> TargetContext:
    """Return what targets may look at: the outputs, names of classes, and places on the photo."""
    preprocessing = classifier.preprocessing

    def embed_image(path: str) -> Tensor:
        if classifier.asked and not classifier.is_encoder:
            raise TargetError(
                "with prompts, the model gives a score for each of them and no embedding: leave "
                "--prompt out to compare the photo with another one"
            )
        other = preprocessing.tensor(preprocessing.view(read_photo(Path(path))))
        return run_model(classifier, classifier.move_inputs(other))[0][0]

    def place_mask(mask: Tensor) -> Tensor:
        is_photos = tuple(mask.shape) == (photo.height, photo.width)
        return mask_in_view(mask, preprocessing) if is_photos else mask

    details: dict[str, Any] = {"embed_image": embed_image, "place_mask": place_mask}
    if classifier.boxes is not None:
        details[LAYOUT] = classifier.boxes
    if classifier.embed is not None:
        details["embed_prompt"] = classifier.embed
    return TargetContext(
        outputs,
        size,
        classifier.classes,
        classifier.activation,
        preprocessing.frame(photo.size).to_view,
        details,
    )


def mask_in_view(mask: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Return the part of a photo's mask that the model sees, at the size it sees it."""
    nearest = replace(preprocessing, interpolation=Image.Resampling.NEAREST, padding=0)
    levels = Image.fromarray(mask.cpu().numpy().astype(numpy.uint8) * 255).convert("RGB")
    return torch.from_numpy(numpy.asarray(nearest.view(levels).convert("L")) > 0)


def encode_record(record: Mapping[str, Any]) -> bytes:
    """Return a record as the content of a JSON file, with the versions of dmbp and torch."""
    versions = {"dmbp": __version__, "torch": torch.__version__}
    text = json.dumps({**record, **versions}, indent=2, ensure_ascii=False)
    # Bytes of file names that are not UTF-8 become JSON's escapes, from which Python restores them.
    return f"{text}\n".encode(errors="backslashreplace")
