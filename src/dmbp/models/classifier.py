"""`Classifier`, a module with its preprocessing and class names, as which every model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, get_args

import numpy
import torch
from PIL import Image
from torch import Tensor, nn
from torch.export import ExportedProgram

from dmbp.errors import InputError, ModelError, PhotoError, TargetError, suggestion
from dmbp.files import shown
from dmbp.linear.model.runner import ModelRunner
from dmbp.probabilities import activation_function
from dmbp.targets import BoxLayout
from dmbp.validation import Constraint, check_fields

Fit = Literal["crop", "squeeze", "squeeze-crop", "whole", "letterbox", "letterbox-corner"]
LETTERBOXES: tuple[Fit, ...] = ("letterbox", "letterbox-corner")
"""The fits that keep all of a photo in its own shape, and pad it to the input's."""
ChannelOrder = Literal["rgb", "bgr"]
Layout = Literal["nchw", "nhwc"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
GREY_MEAN = (0.449,)
GREY_STD = (0.226,)

ASSUMED = "assumed: ImageNet's"
"""The origin of a setting that nothing states."""

ASSUMED_ORIGINS: Mapping[str, str] = dict[str, str].fromkeys(
    ("size", "fit", "mean", "std", "scale", "channels", "interpolation"), ASSUMED
)
"""The origins of a preprocessing of which nothing is stated."""

MAX_SIDE = 4096
"""The longest side of a model's input in pixels: such an image alone takes 0.2 GB."""

MAX_SCALE = 2**32
"""The largest value of white: more than 16 bits for each channel have."""

MAX_SCALED_PIXELS = 64_000_000
"""The most pixels that a photo is scaled to before it is cropped, as many as a photo may have."""

PixelSize = int | tuple[int, int]
"""A side in pixels, or height and width."""

InputSize = int | tuple[int, ...]
"""A `PixelSize`, or the sizes of an input that is not a photo."""

MAX_NUMBERS = 2**24
"""The most numbers of an input that is not a photo."""


def is_photo_size(size: Any) -> bool:
    """Return whether this is a size that photos may have."""
    return _is_size(size, most=MAX_SIDE)


def _is_size(value: Any, *, most: int | None = None) -> bool:
    sides = value if isinstance(value, tuple) else (value, value)
    return len(sides) == 2 and all(
        type(side) is int and side >= 1 and (most is None or side <= most) for side in sides
    )


CROP = Constraint(
    "a number of pixels, or height and width, each at most 4096",
    is_photo_size,
    instance_of=(int, tuple),
)
RESIZE = Constraint("a number of pixels, or height and width", _is_size, instance_of=(int, tuple))
SIDE = Constraint("a number of pixels, at most 4096", lambda side: 1 <= side <= MAX_SIDE)
MULTIPLE = Constraint("a number of pixels, at most 256", lambda side: 1 <= side <= 256)
PADDING = Constraint("a grey from 0 to 255", lambda grey: 0 <= grey <= 255)
CHANNELS = Constraint(
    '"rgb" or "bgr"', lambda order: order in get_args(ChannelOrder), instance_of=(str,)
)
PerChannel = Annotated[tuple[float, ...], Constraint("a number for each channel")]
Scale = Annotated[
    float, Constraint("a number above zero, such as 255", lambda white: 0 < white <= MAX_SCALE)
]
Interpolation = Annotated[
    Image.Resampling,
    Constraint(
        "one of Pillow's, such as Image.Resampling.BICUBIC",
        lambda method: method in iter(Image.Resampling),
        instance_of=(object,),
    ),
]


@dataclass(frozen=True)
class Preprocessing:
    """Turns a photo into a model's input: resizes, crops, scales and normalises it.

    A size is a number of pixels, or a pair of height and width.

    Args:
        resize: Size to which a photo is resized before it is cropped.
        crop: Size of the input in pixels, at most 4096 in each direction.
        fit: Which part of the photo the model sees. "crop" resizes the photo, keeping its shape,
            until it just covers `resize` (a number is the length of the short side), and takes the
            central `crop` of it; "squeeze" resizes the whole photo to `crop`; "squeeze-crop"
            resizes it to `resize` and takes the centre; "whole" makes the short side `crop` pixels
            long and keeps all of it, so that `crop` must be a number. "letterbox" resizes the
            photo, keeping its shape, until it just fits into `crop`, and pads it with grey on both
            sides, as most versions of YOLO take photos; "letterbox-corner" pads it at the right or
            at the bottom only, as YOLOX does.
        longest: With the fit "whole", the most pixels of the long side: of a longer photo, the long
            side is made as long as this. Without it, there is no limit.
        multiple: With the fit "whole", sides are rounded down to multiples of this number.
        padding: The grey that a letterbox is padded with, from 0 to 255.
        mean: Subtracted from each channel: three numbers in the order of `channels`, or one for
            grey images. They are in the range of `scale`.
        std: What each channel is then divided by, as many positive numbers as `mean` has.
        interpolation: Pillow's filter for resizing.
        scale: The value of white before `mean` is subtracted: 1 for pixels from 0 to 1, 255 for
            pixels from 0 to 255.
        channels: The order of the input's channels, "rgb" or "bgr".

    Raises:
        InputError: If a setting has another value.
    """

    resize: Annotated[PixelSize, RESIZE] = 256
    crop: Annotated[PixelSize, CROP] = 224
    fit: Fit = "crop"
    mean: PerChannel = IMAGENET_MEAN
    std: PerChannel = IMAGENET_STD
    interpolation: Interpolation = Image.Resampling.BILINEAR
    scale: Scale = 1.0
    channels: Annotated[ChannelOrder, CHANNELS] = "rgb"
    longest: Annotated[int, SIDE] | None = None
    multiple: Annotated[int, MULTIPLE] = 1
    padding: Annotated[int, PADDING] = 114

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, name, _as_float_tuple(getattr(self, name)))
        for name in ("resize", "crop"):
            object.__setattr__(self, name, _as_size(getattr(self, name)))
        check_fields(self)
        if len(self.mean) not in (1, 3) or len(self.std) != len(self.mean):
            raise InputError(
                "mean and std must be three numbers each, or one each for grey, not "
                f"{len(self.mean)} and {len(self.std)}"
            )
        if min(self.std) <= 0:
            raise InputError(f"std must be above zero in every channel, not {list(self.std)}")
        if self.channels == "bgr" and len(self.mean) == 1:
            raise InputError('channels are "bgr", but mean and std have one number each, for grey')
        if self.fit == "whole" and isinstance(self.crop, tuple):
            raise InputError(
                f'the fit "whole" keeps the shape of a photo, so the size must be one number, the '
                f"short side, not {format_size(self.crop)}: choose squeeze, letterbox or crop"
            )

    @staticmethod
    def for_channels(channels: int | None) -> Preprocessing:
        """Return ImageNet's preprocessing, for grey images if there is one channel.

        The mean and std of grey images are those of ImageNet's three channels, averaged.
        """
        return Preprocessing(mean=GREY_MEAN, std=GREY_STD) if channels == 1 else Preprocessing()

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the input; with the fit "whole", those of a square photo's."""
        return height_and_width(self.crop)

    def with_size(self, size: PixelSize) -> Preprocessing:
        """Return the same preprocessing for another size.

        `resize` and `longest` keep their ratio to `crop`.
        """
        sides = zip(height_and_width(size), height_and_width(self.resize), self.size, strict=True)
        height, width = (max(1, round(new * resize / crop)) for new, resize, crop in sides)
        longest = self.longest
        if longest is not None:
            ratio = height_and_width(size)[0] / self.size[0]
            longest = min(MAX_SIDE, max(1, round(longest * ratio)))
        return replace(self, crop=size, resize=(height, width), longest=longest)

    def as_dict(self) -> dict[str, str | float | list[int] | list[float]]:
        """Return all settings as plain values, for a file or a report; sizes are [height, width]
        if they are not square.
        """
        return {
            "fit": self.fit,
            "resize": list(self.resize) if isinstance(self.resize, tuple) else self.resize,
            "crop": list(self.crop) if isinstance(self.crop, tuple) else self.crop,
            "interpolation": self.interpolation.name.lower(),
            "mean": list(self.mean),
            "std": list(self.std),
            "scale": self.scale,
            "channels": self.channels if len(self.mean) == 3 else "grey",
            **self._settings_of_fit(),
        }

    def _settings_of_fit(self) -> dict[str, int]:
        """Return the settings that only some fits have, where they change anything."""
        if self.fit in LETTERBOXES:
            return {"padding": self.padding}
        if self.fit != "whole":
            return {}
        longest = {} if self.longest is None else {"longest": self.longest}
        return longest if self.multiple == 1 else {**longest, "multiple": self.multiple}

    def view(self, photo: Image.Image) -> Image.Image:
        """Return the part of a photo that the model sees, at the size it sees it.

        Args:
            photo: An RGB image.

        Returns:
            An RGB image; its channels are equal if the model takes grey images. An image of
            floating-point numbers (Pillow's mode F) stays one.
        """
        view = self._resize_and_crop(photo)
        if view.mode == "F":
            return view
        return view.convert("L").convert("RGB") if len(self.mean) == 1 else view

    def _resize_and_crop(self, photo: Image.Image) -> Image.Image:
        width, height = self.scaled_size(photo.size)
        resized = photo.resize((width, height), self.interpolation)
        if self.fit in ("squeeze", "whole"):
            return resized
        down, across = self.size
        left, top = self._start(width, height)
        if self.fit not in LETTERBOXES:
            return resized.crop((left, top, left + across, top + down))
        grey = self.padding / 255 if resized.mode == "F" else (self.padding,) * 3
        padded = Image.new(resized.mode, (across, down), grey)
        padded.paste(resized, (-left, -top))
        return padded

    def _start(self, width: int, height: int) -> tuple[int, int]:
        """Return where the input's left and top are in the scaled photo; padding is below zero."""
        if self.fit == "letterbox-corner":
            return 0, 0
        down, across = self.size
        # Of an odd number of rows, YOLO's letterbox pads the greater half below.
        half = -0.1 if self.fit == "letterbox" else 0
        return round((width - across) / 2 - half), round((height - down) / 2 - half)

    def scaled_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the width and height that a photo is resized to before it is cropped.

        Args:
            size: The photo's width and height.

        Raises:
            PhotoError: If these are more than 64 megapixels.
        """
        width, height = self._scaled_size(*size)
        if width * height > MAX_SCALED_PIXELS:
            raise PhotoError(
                f"the photo of {size[0]}×{size[1]} pixels would be scaled to {width}×{height} for "
                f"the model, more than {MAX_SCALED_PIXELS // 1_000_000} megapixels: crop it first"
            )
        return width, height

    def _scaled_size(self, width: int, height: int) -> tuple[int, int]:
        down, across = self.size
        if self.fit == "squeeze":
            return across, down
        if self.fit == "whole":
            return self._whole_size(width, height)
        if self.fit in LETTERBOXES:
            scale = min(across / width, down / height)
            # Rounded as YOLOX does, and as the other versions do.
            to_whole = int if self.fit == "letterbox-corner" else round
            return max(1, to_whole(scale * width)), max(1, to_whole(scale * height))
        least_height, least_width = height_and_width(self.resize)
        if self.fit == "squeeze-crop":
            scaled = least_width, least_height
        # Rounded as torchvision does: a pixel more or less shifts the whole photo.
        elif width * least_height >= height * least_width:
            scaled = int(least_height * width / height), least_height
        else:
            scaled = least_width, int(least_width * height / width)
        return max(across, scaled[0]), max(down, scaled[1])

    def _whole_size(self, width: int, height: int) -> tuple[int, int]:
        short, long = sorted((width, height))
        side: float = self.size[0]
        if self.longest is None:
            sides = round(short * side / short), round(long * side / short)
        else:
            # Rounded as processors of Hugging Face do: a pixel more or less shifts the whole photo.
            side = min(side, self.longest * short / long)
            sides = round(side), int(side * long / short)
        least, most = (max(self.multiple, k - k % self.multiple) for k in sides)
        return (least, most) if width <= height else (most, least)

    def frame(self, size: tuple[int, int]) -> Frame:
        """Return the part of a photo that the model sees.

        Args:
            size: The photo's width and height.
        """
        width, height = self.scaled_size(size)
        if self.fit in ("squeeze", "whole"):
            return Frame(0, 0, *size, view=(width, height))
        down, across = self.size
        # As `view` rounds: photo pixels for each pixel of the scaled photo.
        x, y = size[0] / width, size[1] / height
        left, top = self._start(width, height)
        return Frame(left * x, top * y, (left + across) * x, (top + down) * y, view=(across, down))

    def tensor(self, view: Image.Image) -> Tensor:
        """Return a view as the model's input.

        Args:
            view: What `view` returned.

        Returns:
            A float32 tensor (1, 3, height, width), or (1, 1, height, width) for grey images.
        """
        is_deep = view.mode == "F"
        view = view.convert("L") if len(self.mean) == 1 and not is_deep else view
        # Divided once, so that the range of 0 to 255 has the photo's own values.
        pixels = numpy.asarray(view, dtype=numpy.float32) / ((1 if is_deep else 255) / self.scale)
        pixels = torch.from_numpy(pixels).reshape(view.height, view.width, len(self.mean))
        pixels = pixels.flip(2) if self.channels == "bgr" else pixels
        normalised = (pixels - torch.tensor(self.mean)) / torch.tensor(self.std)
        return normalised.permute(2, 0, 1)[None].contiguous()

    def denormalise(self, inputs: Tensor) -> Tensor:
        """Return what `tensor` made from a view as RGB, or grey, in [0, 1].

        Args:
            inputs: A tensor (…, channels, height, width).

        Returns:
            A tensor of the same shape; values are outside [0, 1] where no photo has such an input.
        """
        mean, std = (inputs.new_tensor(values)[:, None, None] for values in (self.mean, self.std))
        pixels = (inputs * std + mean) / self.scale
        return pixels.flip(-3) if self.channels == "bgr" else pixels


@dataclass(frozen=True)
class Frame:
    """The part of a photo that a model sees: its sides in the photo's pixels.

    With the padding of a letterbox, sides are outside the photo. `view` is the width and height of
    what the model sees, in pixels of its own.
    """

    left: float
    top: float
    right: float
    bottom: float
    view: tuple[int, int]

    @property
    def corners(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom."""
        return self.left, self.top, self.right, self.bottom

    def to_view(self, point: tuple[float, float]) -> tuple[float, float]:
        """Return where a point of the photo is in the model's input."""
        x, y = point
        return (
            (x - self.left) * self.view[0] / (self.right - self.left),
            (y - self.top) * self.view[1] / (self.bottom - self.top),
        )

    def to_photo(self, point: tuple[float, float]) -> tuple[float, float]:
        """Return where a point of the model's input is in the photo."""
        x, y = point
        return (
            self.left + x * (self.right - self.left) / self.view[0],
            self.top + y * (self.bottom - self.top) / self.view[1],
        )


def height_and_width(size: PixelSize) -> tuple[int, int]:
    """Return a size as a pair."""
    return size if isinstance(size, tuple) else (size, size)


def photo_size(size: InputSize) -> tuple[int, int]:
    """Return the height and width of photos.

    Raises:
        InputError: If it is a size of other inputs, such as three numbers.
    """
    sides = size if isinstance(size, tuple) else (size, size)
    if not is_photo_size(sides):
        raise InputError(
            "the size of photos is a number of pixels, or height and width such as 48x192, each "
            f"at most {MAX_SIDE}, not {format_size(size)}"
        )
    return sides[0], sides[1]


def format_size(size: InputSize) -> str:
    """Return a size as text, such as 48×192 for height and width."""
    return "×".join(map(str, size if isinstance(size, tuple) else (size, size)))


def _as_float_tuple(values: Any) -> Any:
    """Return a list, array or tensor of numbers as a tuple, and anything else unchanged."""
    try:
        return tuple(float(number) for number in values)
    except (TypeError, ValueError):
        return values


def _as_size(size: Any) -> Any:
    """Return a pair as a tuple, or as a number if it is square; anything else unchanged."""
    if not isinstance(size, list | tuple):
        return size
    sides = tuple(size)
    return sides[0] if len(sides) == 2 and sides[0] == sides[1] else sides


# A factory may return a classifier with an exported program, which is converted before use.
MODULE = Constraint("a PyTorch module", instance_of=(nn.Module, ExportedProgram))
PREPROCESSING = Constraint("a Preprocessing", instance_of=(Preprocessing,))
CLASSES = Constraint(
    "a list of names in the order of the outputs", lambda names: isinstance(names, list | tuple)
)


@dataclass(frozen=True)
class Classifier:
    """A model with what is needed to run it on a photo and to name its outputs.

    Args:
        name: What to call the model in reports.
        module: The network, in evaluation mode.
        preprocessing: How a photo becomes its input.
        classes: The names of the classes in the order of the outputs. Without them, classes are
            known by number.
        activation: What turns outputs into probabilities: "softmax" if exactly one class is right,
            "sigmoid" if several may be, "none" if the outputs are probabilities already.
        weights: The file of the weights, if one was given.
        input_shape: The shape of one input, if the model does not take photos.
        origins: Where settings of the preprocessing, and the class names, came from if they are not
            the model's own, such as {"mean": "net.toml", "size": "the file"}.
        boxes: Where the outputs of a detector hold boxes and scores. Those of YOLO are recognised
            without it.
        is_encoder: Whether the outputs are an embedding, to be compared with another one.
        embed: Turns a text into an embedding to compare the outputs with, if the model has an
            encoder of texts.
        compare: Returns a module that gives a score for each of some texts, if the model was
            trained to give such scores.
        asked: What is explained if the user asks nothing; without it, what suits the outputs.

    Raises:
        InputError: If an argument has the wrong type.
    """

    name: str
    module: Annotated[nn.Module, MODULE]
    preprocessing: Annotated[Preprocessing, PREPROCESSING] = field(default_factory=Preprocessing)
    classes: Annotated[tuple[str, ...], CLASSES] | None = None
    activation: Literal["softmax", "sigmoid", "none"] = "softmax"
    weights: str | None = None
    input_shape: tuple[int, ...] | None = None
    origins: Mapping[str, str] = field(default_factory=dict[str, str])
    boxes: BoxLayout | None = None
    is_encoder: bool = False
    embed: Callable[[str], Tensor] | None = None
    compare: Callable[[Sequence[str]], nn.Module] | None = None
    asked: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)

    def with_prompts(self, prompts: Sequence[str]) -> Classifier:
        """Return a model of images and texts as a classifier of prompts, each of which is a class.

        Without a target, every prompt is explained. If scores make sense only beside those of other
        prompts, as CLIP's do, a single prompt remains a similarity.

        Args:
            prompts: Texts such as "a photo of a cat".

        Raises:
            InputError: If a prompt is empty or too long.
            ModelError: If the model has no encoder of texts.
        """
        if self.embed is None:
            raise ModelError(
                f"{self.name} has no encoder of texts: prompts are for models such as CLIP and "
                "SigLIP"
            )
        given = tuple(dict.fromkeys(prompts))
        if self.compare is None or (len(given) == 1 and self.activation == "softmax"):
            return replace(self, asked=tuple(f"similarity:prompt={prompt}" for prompt in given))
        return replace(
            self,
            module=self.compare(given),
            classes=given,
            is_encoder=False,
            asked=tuple(map(str, range(len(given)))),
            origins={**self.origins, "classes": "the prompts"},
        )

    def move_inputs(self, inputs: Tensor) -> Tensor:
        """Return inputs on the device and in the precision of the module's parameters."""
        parameters = (p for p in self.module.parameters() if p.is_floating_point())
        parameter = next(parameters, None)
        return inputs if parameter is None else inputs.to(parameter.device, parameter.dtype)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probability of every class; classes are the last dimension of `outputs`."""
        return activation_function(self.activation)(outputs)

    def is_single_label(self, outputs: Tensor) -> bool:
        """Return whether exactly one of several classes is right."""
        return self.activation == "softmax" and outputs.shape[-1] > 1

    def check_classes(self, outputs: Tensor) -> None:
        """Raise a `TargetError` if there are class names, but not one per output of `outputs`."""
        if self.classes is not None and len(self.classes) != len(outputs):
            single = "a single output, which says yes or no: name what yes stands for"
            count = single if len(outputs) == 1 else f"{len(outputs)} outputs"
            raise TargetError(
                f"{len(self.classes)} class names were given for a model with {count}"
            )

    def class_name(self, index: int) -> str:
        """Return a class's name, or "class 3" if it has none."""
        if self.classes is None or index >= len(self.classes):
            return f"class {index}"
        return self.classes[index]

    def class_index(self, text: str, outputs: Tensor) -> int:
        """Return the index of a class that a user names.

        Args:
            text: A class's number, its name, or a word of its name, in upper or lower case.
            outputs: The model's outputs (classes,) for the photo. If several names have the word,
                such as "cat" in ImageNet, the one with the highest output is chosen.

        Returns:
            The index of the class in `outputs`.

        Raises:
            TargetError: If no class matches, or several classes have exactly this name.
        """
        count = len(outputs)
        if text.strip().removeprefix("-").isdecimal():
            return _check_range(text.strip(), count)
        if self.classes is None:
            raise TargetError(
                f"the model's classes have no names, so {text!r} cannot be looked up: give a "
                f"number from 0 to {count - 1}, or the names with --classes"
            )
        wanted = text.strip().lower()
        names = [name.lower() for name in self.classes]
        exact = [k for k, name in enumerate(names) if name == wanted]
        if len(exact) > 1:
            numbers = ", ".join(map(str, exact))
            raise TargetError(f"the classes {numbers} are all called {text!r}: give the number")
        matching = exact or [
            k for k, name in enumerate(names) if wanted in name.replace("-", " ").split()
        ]
        if not matching:
            hint = suggestion(text, list(self.classes))
            raise TargetError(f"the model has no class {text!r}; {hint}")
        return max(matching, key=lambda k: float(outputs[k]))


def _check_range(number: str, count: int) -> int:
    # More digits than Python reads as a number are out of any range.
    if len(number) > 18 or not 0 <= int(number) < count:
        raise TargetError(
            f"class {shown(number)} is out of range: the model has classes 0 to {count - 1}"
        )
    return int(number)


def move_module(module: nn.Module, device: torch.device | str) -> None:
    """Move a model to a device.

    Raises:
        ModelError: If a parameter or buffer of the model has no data.
    """
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_meta:
            raise ModelError(
                f"the model's {name!r} is on the meta device and has no data: load its weights "
                "first"
            )
    module.to(device)


def run_model(classifier: Classifier, inputs: Tensor) -> tuple[Tensor, Classifier]:
    """Run a model, and find the activation that it ends in.

    Returns:
        The outputs in the model's own shape, before that activation, and the classifier with that
        activation.
    """
    runner = ModelRunner(classifier.module)
    outputs = runner.outputs(inputs)
    form = runner.form(inputs)
    if form is not None and form.has_several_dimensions:
        outputs = outputs.unflatten(1, form.shape)
    if form is not None and form.own_activation is not None:
        classifier = replace(classifier, activation=form.own_activation)
    return outputs, classifier


def run_classifier(classifier: Classifier, inputs: Tensor) -> tuple[Tensor, Classifier]:
    """Run a model that gives a score for each class, as `run_model` does.

    Raises:
        ModelError: If its outputs have several dimensions.
    """
    outputs, classifier = run_model(classifier, inputs)
    if outputs.dim() > 2:
        raise ModelError(
            f"{classifier.name} gives outputs of shape {tuple(outputs.shape[1:])} for an image, "
            "not a score for each class"
        )
    return outputs, classifier
