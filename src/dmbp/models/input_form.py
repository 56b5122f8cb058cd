"""What a model in a file says about its input: how many images it takes, and of what size."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from dmbp.errors import ModelError
from dmbp.linear.one_at_a_time import OneAtATime, settle
from dmbp.models.classifier import Classifier, Preprocessing


@dataclass(frozen=True)
class InputForm:
    """The shape of a model's input, None where any number will do."""

    batch: int | None
    channels: int | None
    height: int | None
    width: int | None

    def preprocessing(self) -> Preprocessing:
        """ImageNet's, at the side the model takes; the crop keeps its share of the photo."""
        usual = Preprocessing.for_channels(self.channels)
        side = self.height or self.width or usual.crop
        return replace(usual, crop=side, resize=round(side * usual.resize / usual.crop))


class ChannelsLast(nn.Module):
    """A model that takes images (batch, height, width, channels), for images as torch has them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """The model's outputs."""
        return self.model(images.permute(0, 2, 3, 1))


def read_form(shapes: Sequence[Sequence[int | None]], source: str) -> InputForm:
    """The form of a model with inputs of these shapes; refused where photos cannot be its input."""
    if len(shapes) != 1:
        raise ModelError(f"{source} takes {len(shapes)} inputs; dmbp explains models of one")
    (shape,) = shapes
    if len(shape) != 4 or shape[1] not in (None, 1, 3):
        raise ModelError(
            f"{source} takes inputs of shape {_written(shape)}, not photos of shape (batch, 3, "
            "height, width)"
        )
    form = InputForm(*shape)
    if None not in (form.height, form.width) and form.height != form.width:
        raise ModelError(
            f"{source} takes images of {form.height}×{form.width} pixels; on the command line dmbp "
            "makes square ones"
        )
    return form


def classifier_of(module: nn.Module, form: InputForm, source: str) -> Classifier:
    """The classifier in a file, for any number of images."""
    if form.batch not in (None, 1):
        raise ModelError(
            f"{source} was exported for batches of {form.batch}; export it for one image, or with "
            "a dynamic batch dimension"
        )
    whole = OneAtATime(module) if form.batch == 1 else module
    settle(whole)
    return Classifier(source, whole, form.preprocessing())


def _written(shape: Sequence[int | None]) -> str:
    return "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"
