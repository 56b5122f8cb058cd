"""Logs maps of fixed images while a model is trained, and how far they moved.

    >>> maps = MapLogger(images, [3], every=2, method="gradient", most_seconds_share=None)
    >>> [logged.step for step in range(4) if (logged := maps.step(model, step)) is not None]
    [0, 2]
    >>> maps.finish(model, 3).partition(", in")[0]         # the rest says what it cost
    'maps of 1 image were logged 3 times, at steps 0 to 3'

At a due step the model is explained as it is, and these are logged, for each image by its name:

    dmbp/maps/<name>                the photo and its map side by side; red speaks for the target
    dmbp/score/<name>               the score that the map explains
    dmbp/moved/<name>               how far the map moved since the last one
    dmbp/moved_since_first/<name>   how far it moved since the first one
    dmbp/share                      seconds spent on maps by seconds of training, so far
    dmbp/skipped                    how many due steps were left out because of the cost, so far

A map has moved by 1 − ρ, where ρ is Spearman's rank correlation of its pixels with the other map's:
0 if their order is the same, about 1 if it has nothing in common, 2 if it is reversed.

Nothing that goes wrong here stops the training. The first failure is a warning of one sentence.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy
import torch
from torch import Tensor, nn

from dmbp.attribution.settings import check_settings
from dmbp.errors import DMBPError, InputError, first_line, one_line
from dmbp.integrations.cost import Cost
from dmbp.integrations.sinks import Picture, Sink, sinks_for
from dmbp.integrations.state import TrainedModel
from dmbp.linear import Target
from dmbp.linear.model.wrappers import levels_to_caller
from dmbp.metrics import rank_correlation
from dmbp.render import PanelStyle
from dmbp.render.colour import Array
from dmbp.render.pictures import (
    parse_photo,
    shown_bands,
    stretch_bands,
    stretch_contrast,
)

Result = TypeVar("Result")

MOST_SECONDS_SHARE = 0.05
"""The share of the training's time that maps may take unless another one is given."""

SHOWN_SIDE = 224
"""Pictures of smaller images are enlarged to at least this many pixels, so that one sees them."""


@dataclass(frozen=True)
class LoggedMaps:
    """What was logged at one step.

    `maps` are (images, height, width), signed; `scores` are those that the maps explain. `moved`
    and `moved_since_first` are None for the first maps. `seconds` is what all of this took.
    """

    step: int
    maps: Tensor
    scores: tuple[float, ...]
    moved: tuple[float, ...] | None
    moved_since_first: tuple[float, ...] | None
    seconds: float


class MapLogger:
    """Explains fixed images every `every` steps of a training, within a budget of time.

    Call `step(model, step)` at every step of the training and `finish(model, step)` at its end, or
    pass this to `LightningMaps` or `TrainerMaps`.

    The first maps are always made, because nobody knows their cost before. After that a due step is
    left out if its maps, and those at the end of the training, would exceed the budget; it is
    counted in `dmbp/skipped` and in the sentence that `finish` returns.

    Args:
        images: The images as the model takes them, (images, channels, height, width). They are
            moved to the model's device and precision when they are needed.
        targets: What to explain, one target for each image, such as its class.
        to: Where to log: a `SummaryWriter`, a run of Weights & Biases or MLflow, a logger of
            Lightning, or a list of these. With None, a callback takes the loggers of its trainer.
        every: How many steps lie between two maps.
        method: A name from `dmbp.methods()`; "gradcam" costs least.
        names: A name for each image, which ends its tags; by default they are numbered.
        photos: What to show beside each map: a Pillow image, an array (height, width, 3) in [0, 1]
            or a tensor. By default the images, with their contrast stretched.
        most_seconds_share: The largest share of the training's time that maps may take; None for
            no limit.
        additional_forward_args: The model's other inputs, as for `DMBP.attribute`.
        **settings: The method's settings.

    Raises:
        InputError: If an argument or a setting cannot be used.
    """

    def __init__(
        self,
        images: Tensor,
        targets: Target,
        *,
        to: Any = None,
        every: int = 100,
        method: str = "dmbp",
        names: Sequence[str] | None = None,
        photos: Sequence[Any] | None = None,
        most_seconds_share: float | None = MOST_SECONDS_SHARE,
        additional_forward_args: Any = None,
        **settings: Any,
    ) -> None:
        """See the class."""
        _check_images(images, targets)
        _check_every(every)
        if most_seconds_share is not None and not 0 < most_seconds_share <= 1:
            raise InputError(
                f"most_seconds_share is a share between 0 and 1, or None, not {most_seconds_share}"
            )
        check_settings(method, settings)
        self.every = every
        self.names = _names(names, len(images))
        self.sinks: list[Sink] = sinks_for(to)
        self.cost = Cost(most_seconds_share)
        self.logged_steps: list[int] = []
        self.skipped_steps: list[int] = []
        self.failures: list[str] = []
        self._photos = _photos(images, photos)
        self._explained = TrainedModel(
            images.detach().cpu().clone(),
            targets,
            method=method,
            settings=settings,
            additional_forward_args=additional_forward_args,
        )
        self._first: Tensor | None = None
        self._last: Tensor | None = None
        self._last_due: int | None = None
        self._last_tried: int | None = None

    def use(self, destination: Any) -> None:
        """Log to a destination, such as the loggers of a trainer, if none was given before.

        A destination that cannot be used is a warning.

        Args:
            destination: What the argument `to` may be.
        """
        if not self.sinks:
            self.sinks = self._safely(0, lambda: sinks_for(destination)) or []
            if not self.sinks and not self.failures:
                warnings.warn(
                    "the trainer has no logger, so maps are made but written nowhere; pass "
                    "MapLogger(to=…) a SummaryWriter, or a run of Weights & Biases or MLflow",
                    stacklevel=levels_to_caller(),
                )

    def step(self, model: nn.Module, step: int) -> LoggedMaps | None:
        """Log maps if they are due at this step and within the budget.

        They are due at the first step that is passed, and whenever a multiple of `every` is reached
        or passed over. Processes other than the first of a distributed training do nothing.

        Args:
            model: The model in training; its mode, gradients and random numbers stay as they are.
            step: How many steps the training has made.

        Returns:
            What was logged, or None if nothing was.
        """
        if not is_first_process():
            return None
        self.cost.start()
        if self._last_due is not None and step // self.every == self._last_due // self.every:
            return None
        self._last_due = step
        # One more is kept for the end of the training.
        return self._log_within_budget(model, step, maps_to_come=2)

    def finish(self, model: nn.Module, step: int) -> str:
        """Log the last maps if they are within the budget, and a sentence about all of them.

        Args:
            model: The model at the end of its training.
            step: How many steps the training has made.

        Returns:
            What was logged, what it cost and what was skipped, in a sentence.
        """
        if not is_first_process():
            return ""
        self.cost.start()
        if step != self._last_tried:
            self._log_within_budget(model, step, maps_to_come=1)
        said = self.summary
        for sink in self.sinks:
            self._safely(step, partial(sink.write_text, "dmbp/summary", said))
        return said

    @property
    def last_maps(self) -> Tensor | None:
        """The maps that were made last, (images, height, width)."""
        return self._last

    @property
    def summary(self) -> str:
        """What was logged, what it cost and what was skipped, in a sentence."""
        images, times = _count(len(self.names), "image"), len(self.logged_steps)
        said = f"maps of {images} were logged {_count(times, 'time')}"
        if times:
            where = f"{self.logged_steps[0]} to {self.logged_steps[-1]}"
            said += f", at step{f's {where}' if times > 1 else f' {self.logged_steps[0]}'}"
        said += f", in {self.cost.spent:.1f} s, which is {self.cost.share:.1%} of the training's "
        said += f"{self.cost.training_seconds:.1f} s"
        if self.cost.most is not None:
            said += f" (at most {self.cost.most:.1%} were asked for"
            said += "; the first maps are always made)" if self.cost.is_exceeded else ")"
        if self.skipped_steps:
            left_out = self.skipped_steps
            many = f" to {left_out[-1]}" if len(left_out) > 1 else ""
            were = "were" if len(left_out) > 1 else "was"
            said += f"; {_count(len(left_out), 'due step')} {were} skipped to save time"
            said += f" ({left_out[0]}{many})"
            if self.cost.most is not None:
                said += ", most_seconds_share=None makes all"
        if self.failures:
            said += f"; {_count(len(self.failures), 'attempt')} failed: {self.failures[-1]}"
        if times and not self.sinks:
            said += "; they were written nowhere, because to= was not given"
        return said

    def _log_within_budget(
        self, model: nn.Module, step: int, *, maps_to_come: int
    ) -> LoggedMaps | None:
        self.skipped_steps = [skipped for skipped in self.skipped_steps if skipped != step]
        if not self.cost.allows(maps_to_come):
            self.skipped_steps.append(step)
            return None
        self._last_tried = step
        return self._safely(step, lambda: self._log(model, step))

    def _safely(self, step: int, action: Callable[[], Result]) -> Result | None:
        """Turn an error into a warning, the first time, and into a part of the summary."""
        try:
            return action()
        except Exception as error:
            said = one_line(error) if isinstance(error, DMBPError) else first_line(error)
            self.failures.append(f"step {step}: {said}")
            if len(self.failures) == 1:
                warnings.warn(
                    f"maps could not be logged at step {step}, and training goes on: {said}",
                    stacklevel=levels_to_caller(),
                )
            return None

    def _log(self, model: nn.Module, step: int) -> LoggedMaps:
        """Explain the model as it is, and write to the sinks."""
        begin = time.perf_counter()
        if self._first is None:
            with self.cost.counted(is_typical=False):
                self._explained.prepare(model)
        with self.cost.counted():
            maps, scores = self._explained.maps(model)
            moved = None if self._last is None else movement(self._last, maps)
            since_first = None if self._first is None else movement(self._first, maps)
            self._last = maps
            self._first = maps if self._first is None else self._first
            pictures = self._pictures(maps)
            logged = LoggedMaps(
                step,
                maps,
                tuple(scores.tolist()),
                moved,
                since_first,
                time.perf_counter() - begin,
            )
            for sink in self.sinks:
                sink.log(self._scalars(logged), pictures, step)
        self.logged_steps.append(step)
        return logged

    def _scalars(self, logged: LoggedMaps) -> dict[str, float]:
        """Return the numbers of a step by their tags."""
        groups = {
            "score": logged.scores,
            "moved": logged.moved,
            "moved_since_first": logged.moved_since_first,
        }
        values = {
            f"dmbp/{group}/{name}": value
            for group, found in groups.items()
            for name, value in zip(self.names, found or (), strict=False)
        }
        return {
            **values,
            "dmbp/share": self.cost.share,
            "dmbp/skipped": float(len(self.skipped_steps)),
        }

    def _pictures(self, maps: Tensor) -> dict[str, Picture]:
        """Return each photo beside its map, by its tag; each map has its own colour scale."""
        return {
            f"dmbp/maps/{name}": side_by_side(photo, one.double().numpy())
            for name, photo, one in zip(self.names, self._photos, maps, strict=True)
        }


def log_maps(
    model: nn.Module,
    images: Tensor,
    targets: Target,
    *,
    to: Any,
    step: int = 0,
    method: str = "dmbp",
    names: Sequence[str] | None = None,
    photos: Sequence[Any] | None = None,
    **settings: Any,
) -> LoggedMaps:
    """Log maps of images once, whatever they cost; errors are raised.

    Args:
        model: The model, in training or not.
        images: The images as the model takes them, (images, channels, height, width).
        targets: What to explain, one target for each image.
        to: Where to log, as for `MapLogger`.
        step: The step that they are logged for.
        method: A name from `dmbp.methods()`.
        names: A name for each image, which ends its tags.
        photos: What to show beside each map.
        **settings: The method's settings.

    Returns:
        The maps and scores.

    Raises:
        DMBPError: If the arguments cannot be used or the model cannot be explained.
    """
    maps = MapLogger(
        images,
        targets,
        to=to,
        method=method,
        names=names,
        photos=photos,
        most_seconds_share=None,
        **settings,
    )
    maps.cost.start()
    return maps._log(model, step)


def movement(before: Tensor, after: Tensor) -> tuple[float, ...]:
    """Return how far each map moved: 1 − Spearman's rank correlation of its pixels.

    Args:
        before: Maps (images, height, width).
        after: Maps of the same shape.

    Returns:
        For each image 0 if no pixel changed its rank, about 1 if the order has nothing in common,
        or one map is the same everywhere, and 2 if it is reversed.
    """
    moved = 1 - rank_correlation(before.unsqueeze(1), after.unsqueeze(1))
    same = (before == after).flatten(1).all(1)  # also if a map is zero everywhere
    return tuple(torch.where(same, 0.0, moved).clamp(0, 2).tolist())


def is_first_process() -> bool:
    """Return whether this is the first process of a distributed training, or the only one."""
    distributed = torch.distributed
    is_running = distributed.is_available() and distributed.is_initialized()
    return not is_running or distributed.get_rank() == 0


def side_by_side(photo: Array, attribution: Array) -> Picture:
    """Return a photo (height, width, 3) in [0, 1] and its map beside it, enlarged if small."""
    drawn = PanelStyle().evidence_image(attribution, photo)
    gap = numpy.ones((len(photo), max(1, photo.shape[1] // 32), 3))
    pixels = numpy.concatenate([photo, gap, drawn], axis=1)
    factor = -(-SHOWN_SIDE // max(photo.shape[:2]))
    pixels = pixels.repeat(factor, axis=0).repeat(factor, axis=1)
    return (255 * pixels.clip(0, 1)).round().astype(numpy.uint8)


def _check_every(every: Any) -> None:
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise InputError(f"every must be a whole number of steps, 1 or more, not {every!r}")


def _check_images(images: Any, targets: Any) -> None:
    if not isinstance(images, Tensor) or images.dim() != 4 or not len(images):
        found = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise InputError(
            f"maps are logged of images (images, channels, height, width), not of {found}"
        )
    if targets is None:
        raise InputError("name one target for each image, such as its class, not None")
    if isinstance(targets, Mapping) or not hasattr(targets, "__len__"):
        return  # one target for all images
    if len(targets) != len(images):
        raise InputError(f"{len(targets)} targets were given for {len(images)} images")


def _names(names: Sequence[str] | None, images: int) -> list[str]:
    chosen = [f"image{k}" for k in range(images)] if names is None else list(map(str, names))
    if len(chosen) != images or len(set(chosen)) != images:
        raise InputError(f"{images} images need as many different names, not {chosen}")
    return chosen


def _photos(images: Tensor, photos: Sequence[Any] | None) -> list[Array]:
    """Return what is shown beside each map, as RGB in [0, 1]."""
    if photos is not None and len(photos) != len(images):
        raise InputError(f"{len(photos)} photos were given for {len(images)} images")
    if photos is not None:
        height, width = images.shape[2:]
        return [parse_photo(photo, (height, width)) for photo in photos]
    shown = list(shown_bands(images, None))
    stretch = stretch_contrast if images.shape[1] == len(shown) else stretch_bands
    return [stretch(image[shown]) for image in images]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
