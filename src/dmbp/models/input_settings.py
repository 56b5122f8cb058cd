"""`InputSettings`: how photos become a model's input, where the model itself does not say.

A `.pt2` or `.onnx` file states the shape of its input at most. Settings come in layers, and each
layer overrides those before it: what is assumed, what files beside the model say
(`settings_files.py`), and what the caller or the command line gives. `Classifier.origins` says
where each setting came from.

    >>> caffe = InputSettings(scale=255, channels="bgr", mean=(104, 117, 123))
    >>> caffe.change(Preprocessing()).std
    (1.0, 1.0, 1.0)
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, cast

from PIL import Image

from dmbp.errors import InputError
from dmbp.models.classifier import (
    CHANNELS,
    MAX_NUMBERS,
    MAX_SCALE,
    MULTIPLE,
    PADDING,
    SIDE,
    ChannelOrder,
    Classifier,
    Fit,
    InputSize,
    Layout,
    Preprocessing,
    photo_size,
)
from dmbp.models.exported_program import Ends
from dmbp.validation import FORBID_UNKNOWN, Constraint, OneOf, check_fields

OPTIONS = "the options"
"""The origin of a setting that the caller or the command line gives."""

MOST_SIDES = 4
"""The most sizes of an input, which is a volume of several channels."""

INTERPOLATIONS: Mapping[str, Image.Resampling] = {
    method.name.lower(): method for method in Image.Resampling
}


def as_size(value: Any) -> InputSize | None:
    """Return a size that is written as a number, numbers or text such as 48x192, or None."""
    if isinstance(value, str):
        if not re.fullmatch(r"\d{1,9}([x×]\d{1,9})*", value):
            return None
        value = [int(side) for side in re.split("[x×]", value)]
    sides: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
    if not 1 <= len(sides) <= MOST_SIDES or not all(type(side) is int for side in sides):
        return None
    if min(sides) < 1 or math.prod(sides) > MAX_NUMBERS:
        return None
    is_square = len(sides) == 1 or (len(sides) == 2 and sides[0] == sides[1])
    return sides[0] if is_square else tuple(sides)


def _is_per_channel(value: Any) -> bool:
    values: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
    return len(values) in (1, 3) and all(
        isinstance(number, int | float)
        and not isinstance(number, bool)
        and abs(number) <= MAX_SCALE  # neither NaN nor infinite
        for number in values
    )


Size = Annotated[
    Any,
    Constraint(
        "a number of pixels, or height and width such as 48x192; or the sizes of other inputs, "
        f"{MAX_NUMBERS:,} numbers at most",
        lambda value: value is None or as_size(value) is not None,
    ),
]
PerChannel = Annotated[
    Any,
    Constraint(
        "one number, or three numbers, one for each channel",
        lambda value: value is None or _is_per_channel(value),
    ),
]
White = Annotated[
    Any,
    Constraint(
        "a number above zero, such as 255",
        lambda value: value is None or (_is_per_channel(value) and value > 0),
    ),
]
InterpolationName = Annotated[str, OneOf("interpolation", tuple(INTERPOLATIONS))]


def make_hashable(instance: Any) -> None:
    """Turn the lists among an instance's sizes and numbers into tuples."""
    for name in ("size", "resize", "mean", "std"):
        value = getattr(instance, name)
        if isinstance(value, list):
            object.__setattr__(instance, name, tuple(cast("list[Any]", value)))


@dataclass(frozen=True)
class InputSettings:
    """Settings of a model's input; None leaves a setting as it is.

    Args:
        size: Side of the input in pixels, or height and width, as a pair or as text, "48x192".
            For inputs that are not photos, the sizes that a file leaves open.
        fit: Which part of a photo the model sees, as in `Preprocessing`.
        resize: The size before cropping, as in `Preprocessing`. By default it keeps its ratio to
            the size of the input.
        mean: Subtracted from each channel, in the order of `channels` and the range of `scale`:
            three numbers, or one for all channels.
        std: What each channel is then divided by, likewise.
        scale: The value of white, 1 or 255. If it is given, `mean` is 0 and `std` is 1 unless they
            are given, too.
        channels: The order of the channels. If it is given without `mean` and `std`, these are
            reversed with the channels.
        interpolation: Pillow's filter for resizing, in lower case: "bilinear", "bicubic" and so on.
        longest: With the fit "whole", the most pixels of the long side.
        multiple: With the fit "whole", what sides are rounded down to multiples of.
        padding: The grey that a letterbox is padded with, from 0 to 255.
        layout: "nhwc" if the model takes images (batch, height, width, channels), "nchw" if it
            takes (batch, channels, height, width).

    Raises:
        InputError: If a setting has another value.
    """

    size: Size = None
    fit: Fit | None = None
    resize: Size = None
    mean: PerChannel = None
    std: PerChannel = None
    scale: White = None
    channels: Annotated[ChannelOrder, CHANNELS] | None = None
    interpolation: InterpolationName | None = None
    longest: Annotated[int, SIDE] | None = None
    multiple: Annotated[int, MULTIPLE] | None = None
    padding: Annotated[int, PADDING] | None = None
    layout: Layout | None = None

    __pydantic_config__ = FORBID_UNKNOWN

    def __post_init__(self) -> None:
        make_hashable(self)
        check_fields(self, owner="the input's settings")

    @property
    def given(self) -> list[str]:
        """The names of the settings that are not None."""
        names = [item.name for item in fields(InputSettings)]
        return [name for name in names if getattr(self, name) is not None]

    def change(self, preprocessing: Preprocessing) -> Preprocessing:
        """Return a preprocessing with these settings.

        Raises:
            InputError: If they do not fit together, or there are more numbers than channels.
        """
        count = len(preprocessing.mean)
        mean, std = preprocessing.mean, preprocessing.std
        if self.channels not in (None, preprocessing.channels):
            mean, std = mean[::-1], std[::-1]
        if self.scale is not None:
            mean, std = (0.0,) * count, (1.0,) * count
        sized = preprocessing
        size, resize = as_size(self.size), as_size(self.resize)
        if size is not None:
            # The fit is changed first: a rectangle does not go with every fit.
            sized = replace(preprocessing, fit=self.fit or preprocessing.fit)
            sized = sized.with_size(photo_size(size))
        interpolation = preprocessing.interpolation
        return replace(
            sized,
            fit=self.fit or preprocessing.fit,
            resize=sized.resize if resize is None else resize,
            mean=mean if self.mean is None else _per_channel("mean", self.mean, count),
            std=std if self.std is None else _per_channel("std", self.std, count),
            scale=preprocessing.scale if self.scale is None else float(self.scale),
            channels=self.channels or preprocessing.channels,
            interpolation=INTERPOLATIONS.get(self.interpolation or "", interpolation),
            longest=sized.longest if self.longest is None else self.longest,
            multiple=self.multiple or preprocessing.multiple,
            padding=preprocessing.padding if self.padding is None else self.padding,
        )


def _per_channel(name: str, value: Any, count: int) -> tuple[float, ...]:
    numbers: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
    if len(numbers) > count:
        raise InputError(f"{name} has {len(numbers)} numbers, but the model takes grey images")
    return tuple(float(number) for number in (numbers * count if len(numbers) == 1 else numbers))


@dataclass(frozen=True)
class SettingsLayer:
    """Settings, class names, and which inputs and outputs are meant, from one place, its `origin`.

    A `conventional` layer comes from a JSON file that was not written for this model file, so a
    size that the model file states goes before the layer's.
    """

    origin: str
    settings: InputSettings = field(default_factory=InputSettings)
    classes: tuple[str, ...] | None = None
    conventional: bool = False
    ends: Ends = field(default_factory=Ends)

    def apply(self, classifier: Classifier) -> Classifier:
        """Return a classifier with this layer's settings and class names.

        The layout is left to whoever loads the module.
        """
        own, settings = classifier.preprocessing, self.settings
        named = settings.given
        if settings.scale is not None:
            named += ["mean", "std"]
        if self.classes is not None:
            named += ["classes"]
        if classifier.input_shape is not None and settings.size is not None:
            settings = replace(settings, size=None)  # whoever loaded the module has used it
        try:
            preprocessing = settings.change(own)
            if self.conventional and settings.size is not None and preprocessing.crop != own.crop:
                named.remove("size")
                preprocessing = preprocessing.with_size(own.crop)
        except InputError as error:
            raise InputError(f"{classifier.name}, with {self.origin}: {error}") from error
        return replace(
            classifier,
            preprocessing=preprocessing,
            classes=classifier.classes if self.classes is None else self.classes,
            origins={**classifier.origins, **dict.fromkeys(named, self.origin)},
        )


def settings_of(preprocessing: Preprocessing) -> InputSettings:
    """Return settings that turn any preprocessing into this one."""
    return InputSettings(
        size=preprocessing.crop,
        fit=preprocessing.fit,
        resize=preprocessing.resize,
        mean=preprocessing.mean,
        std=preprocessing.std,
        scale=preprocessing.scale,
        channels=preprocessing.channels,
        interpolation=preprocessing.interpolation.name.lower(),
        longest=preprocessing.longest,
        multiple=preprocessing.multiple,
        padding=preprocessing.padding,
    )
