"""Occlusion: what the score loses without a window of the image.

    a(pixel) = mean over the windows that cover it of  y(x) − y(x without the window)

`Occlusion` removes windows in one way, and shows every change. `WindowWorth` is the first step of
the default explanation by itself (`dmbp.decompose.tested`): windows are removed in two ways, and
also shown alone; a place is red if it is worth something on average, and blue only if all tests
agree that it costs something. Both run the windows of all rows in large batches, an image with
several targets once, and no window that nothing is removed from. Captum's `Occlusion` gives the
same numbers where its windows are ours, but runs every window of one row after the other.

    >>> Occlusion(model, window=0.5).attribute(images, target=3).shape
    torch.Size([1, 1, 8, 8])

Zeiler and Fergus, "Visualizing and Understanding Convolutional Networks", ECCV 2014, who cover a
square with grey and name no size; Captum's examples take 15 of 224 pixels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dmbp.attribution.base import Method
from dmbp.attribution.passes import run_of
from dmbp.baseline import Baseline
from dmbp.decompose.places import order_without_colour, place_worth, significance, smooth_places
from dmbp.decompose.places import window_runs as runs_of_windows
from dmbp.decompose.removal import ChangedImages, default_removals
from dmbp.decompose.settings import OneRemoval, Removal, WindowTest
from dmbp.decompose.tested import TIE_BREAK
from dmbp.decompose.windows import WindowRun, windows_over
from dmbp.engine import ForwardPasses
from dmbp.linear import Question
from dmbp.linear.model.signature import Output
from dmbp.linear.model.wrappers import Model

IMAGE_WINDOW = 1 / 8
"""The default side for images: half of what the default explanation tests, 225 windows."""


class Occlusion(Method):
    """What the score loses if a window is replaced by a baseline.

    Args:
        model: The model to explain.
        window: The side of a window as a share of the input's side; None takes 1/8 for images, 1/20
            for signals, 2/5 for volumes, and every entry of a vector by itself.
        stride: The distance between windows as a share of the input's side; None takes half a
            window.
        reference: What windows are replaced by: None or "zero" (for images normalised to a mean of
            zero, the paper's grey), "blur", "mean" or a tensor. `baselines` passed to `attribute`
            take its place.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.

    Raises:
        InputError: If a setting is out of range, or leaves gaps between windows.
    """

    takes_baselines = True

    def __init__(
        self,
        model: Model,
        *,
        window: float | None = None,
        stride: float | None = None,
        reference: Baseline = None,
        output: Output = None,
    ) -> None:
        super().__init__(model, output=output)
        self.check_settings(window=window, stride=stride)
        self.window, self.stride = window, stride
        self.reference: Baseline = reference
        self._passes = ForwardPasses()

    @staticmethod
    def check_settings(*, window: float | None, stride: float | None, **_: Any) -> None:
        """Raise an `InputError` if a setting is out of range."""
        WindowTest(window=window, stride=stride)

    @property
    def run_count(self) -> int:
        """About the number of windows, if they have the usual size."""
        return 230

    @torch.no_grad()
    def answer(self, question: Question) -> Tensor:
        """Return the mean loss over the windows that cover each pixel."""
        inputs = question.inputs
        reference: Baseline = question.baselines
        if reference is None:
            reference = question.baseline_of_rows(self.reference)
        side = IMAGE_WINDOW if inputs.dim() == 4 and self.window is None else self.window
        windows = windows_over(inputs, side, self.stride)
        changed = ChangedImages(question, (reference,), run=run_of(question, self._passes))
        ((worth, _),) = changed.window_worth([WindowRun(0, False, windows)])
        return as_map(windows.paint(worth), inputs)


class WindowWorth(Method):
    """What places are worth to the score by every test of the default explanation, without detail.

    Pixels that have no colour have tiny attributions, which only order them.

    Args:
        model: The model to explain.
        window: The side of a window as a share of the input's side; None takes 1/4 for images, as
            the default explanation does.
        stride: The distance between windows as a share of the input's side; None takes half a
            window.
        contexts: 1 removes each window from the image; 2 also puts it alone into an image where
            everything else is removed.
        removal: How windows are removed: "blur", "mean", "zero", "noise", a tensor, a function of
            images and a mask, or several of these, which have to agree. None takes blur and mean.
            `baselines` passed to `attribute` take its place.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.

    Raises:
        InputError: If a setting is out of range, or leaves gaps between windows.
    """

    takes_baselines = True

    def __init__(
        self,
        model: Model,
        *,
        window: float | None = None,
        stride: float | None = None,
        contexts: int = 2,
        removal: Removal = None,
        output: Output = None,
    ) -> None:
        super().__init__(model, output=output)
        self.test = WindowTest(window=window, stride=stride, contexts=contexts, removal=removal)
        self._passes = ForwardPasses()

    @staticmethod
    def check_settings(
        *, window: float | None, stride: float | None, contexts: int, removal: Removal, **_: Any
    ) -> None:
        """Raise an `InputError` if a setting is out of range."""
        WindowTest(window=window, stride=stride, contexts=contexts, removal=removal)

    @property
    def run_count(self) -> int:
        """About the number of tests of all windows, if they have the usual size."""
        return 170

    @torch.no_grad()
    def answer(self, question: Question) -> Tensor:
        """Return the worth of red places, minus the cost of blue ones."""
        test, inputs = self.test, question.inputs
        removals: tuple[OneRemoval, ...] = test.removals or default_removals(inputs)
        if question.baselines is not None:
            removals = (question.baselines,)
        removals = tuple(
            question.baseline_of_rows(k) if isinstance(k, Tensor) else k for k in removals
        )
        changed = ChangedImages(question, removals, run=run_of(question, self._passes))
        runs = runs_of_windows(
            changed, window=test.window, stride=test.stride, contexts=test.contexts
        )
        places = smooth_places(place_worth(runs, changed.window_worth(runs)))
        red_area = places.worth > significance(places)
        red = torch.where(red_area, places.worth, 0)
        order = torch.where(places.cost > 0, 0, order_without_colour(places, red_area))
        largest = red.flatten(1).amax(1).view(-1, *(1,) * (red.dim() - 1))
        return as_map(red - places.cost + TIE_BREAK * largest * order, inputs)


def as_map(pixels: Tensor, inputs: Tensor) -> Tensor:
    """Return values of pixels, (rows, *size), with one channel, unless inputs are vectors."""
    return pixels if inputs.dim() == 2 else pixels[:, None]
