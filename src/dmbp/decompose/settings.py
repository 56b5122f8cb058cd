"""How a decomposition is learned and read out: objectives, settings and presets.

An objective is a loss over the terms: the paper's (Eq. 10) or one of its two ablations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from torch import Tensor

from dmbp.baseline import Baseline, ReplaceFunction
from dmbp.engine import PRECISIONS, Loss
from dmbp.errors import InputError, require_known
from dmbp.validation import MAX_REPETITIONS

OBJECTIVES: Mapping[str, Loss] = {
    "all": Loss(positive=-1, negative=1, nuisance=1),  # y⁻ − y⁺ + |y~|: the paper's DMBP
    "posneg": Loss(positive=-1, negative=1, nuisance=0),  # DMBP⁺⁻ of the ablation table
    "pos": Loss(positive=-1, negative=0, nuisance=0),  # DMBP⁺
}


Combine = Literal["sum", "own_signs"]
Precision = Literal["auto", "float16", "bfloat16", "tf32", "float32"]


OneRemoval = Baseline | Literal["noise"] | ReplaceFunction
"""What replaces removed pixels: a name, a tensor, or a function."""

Removal = OneRemoval | Sequence[OneRemoval]

MAX_LEARNING_RATE = 1000
"""A step of 1 already takes a mask from one end of its range to the other."""

MAX_MIXTURES = 1000
"""All mixtures of an image are in memory at once."""

NAMED_REMOVALS = ("blur", "mean", "zero", "noise")


@dataclass(frozen=True)
class WindowTest:
    """How a map's colours are tested on the model.

    Args:
        window: The side of a window as a share of the input's side; None takes 1/4 for images (0.18
            for windows removed by the first removal), 1/20 for signals, 2/5 for volumes, and every
            entry of a vector by itself.
        stride: The distance between windows as a share of the input's side; None takes half a
            window.
        contexts: 1 removes each window from the image; 2 also puts it alone into an image where
            everything else is removed.
        floor: The share of a window's worth that is spread evenly over its pixels, from 0 to 1; the
            rest follows the streams. None lets the model choose among four details.
        removal: How windows are removed: "blur", "mean", "zero", "noise" around the mean, a tensor,
            a function of images and a mask, or several of these, which have to agree. None takes
            blur and mean, with noise to confirm them, or zero for vectors.
        mixtures: In how many mixtures of the image with what is left of it gradients are taken, an
            even number; they add detail to the streams. 0 takes none.

    Raises:
        InputError: If a setting is out of range.
    """

    window: float | None = None
    stride: float | None = None
    contexts: int = 2
    floor: float | None = None
    removal: Removal = None
    mixtures: int = 8

    def __post_init__(self) -> None:
        for name in ("window", "stride"):
            share: Any = getattr(self, name)
            if share is not None and not (_is_number(share) and 0 < share <= 1):
                raise InputError(
                    f"{name} is a share of the input's side, above 0 and at most 1, not {share!r}"
                )
        if self.contexts not in (1, 2):
            raise InputError(f"contexts must be 1 or 2, not {self.contexts!r}")
        floor: Any = self.floor
        if floor is not None and not (_is_number(floor) and 0 <= floor <= 1):
            raise InputError(f"floor must be from 0 to 1, or None, not {floor!r}")
        mixtures: Any = self.mixtures
        is_count = isinstance(mixtures, int) and not isinstance(mixtures, bool)
        if not is_count or not 0 <= mixtures <= MAX_MIXTURES or mixtures % 2:
            raise InputError(
                f"mixtures must be an even number from 0 to {MAX_MIXTURES:,}, not {mixtures!r:.60}"
            )
        for removal in self.removals:
            is_known = _is_name(removal) and removal in (None, *NAMED_REMOVALS)
            if not (is_known or isinstance(removal, Tensor) or callable(removal)):
                raise InputError(
                    "removal must be 'blur', 'mean', 'zero', 'noise', a tensor, a function or "
                    f"several of these, not {removal!r:.60}"
                )

    @property
    def removals(self) -> tuple[OneRemoval, ...]:
        """The removals, none if they depend on the inputs."""
        if self.removal is None:
            return ()
        if isinstance(self.removal, str | Tensor) or not isinstance(self.removal, Sequence):
            return (cast("OneRemoval", self.removal),)
        return tuple(self.removal)

    def described(self) -> dict[str, str | int | float]:
        """Return the settings as plain values; those that depend on the inputs are "auto"."""
        removals = [
            "tensor" if isinstance(k, Tensor) else getattr(k, "__name__", "function")
            if callable(k) else k or "zero" for k in self.removals
        ]  # fmt: skip
        return {
            "window": "auto" if self.window is None else self.window,
            "stride": "auto" if self.stride is None else self.stride,
            "contexts": self.contexts,
            "floor": "auto" if self.floor is None else self.floor,
            "removal": " and ".join(removals) or "auto",
            "mixtures": self.mixtures,
        }


def _is_name(removal: Any) -> bool:
    return removal is None or isinstance(removal, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Settings:
    """Settings of DMBP; the defaults are the preset "fast".

    Args:
        objective: What the masks learn: "all" (the paper's loss), "posneg" or "pos".
        iterations: How many RMSProp iterations the masks are learned for.
        learning_rate: RMSProp's learning rate.
        reference: What pixels are compared with: None or "zero", "blur", "mean" or a tensor.
        combine: "sum" adds the attributions of the two streams (the paper's a(x), Eq. 8).
            "own_signs" keeps only the pixels of the positive stream that speak for the target, and
            only those of the negative stream that speak against it.
        precision: The precision that masks are learned in. "auto" is the model's own on a CPU; on a
            GPU it is float16, or bfloat16 if numbers are beyond float16's range. Masks learned in
            these correlate with those of float32 by 0.99997 and 0.9998.
        test: How the map's colours are tested on the model, or None to read the streams alone.

    Raises:
        InputError: If a setting is unknown or out of range.
    """

    objective: str = "all"
    iterations: int = 50
    learning_rate: float = 0.05
    reference: Baseline = "blur"
    combine: Combine = "own_signs"
    precision: Precision = "auto"
    test: WindowTest | None = None

    def __post_init__(self) -> None:
        require_known("objective", self.objective, OBJECTIVES)
        require_known("combine", self.combine, ("sum", "own_signs"))
        require_known("precision", self.precision, PRECISIONS)
        is_count = isinstance(self.iterations, int)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_count or not 0 <= self.iterations <= MAX_REPETITIONS:
            raise InputError(
                f"iterations must be a whole number from 0 to {MAX_REPETITIONS:,}, not "
                f"{self.iterations!r:.60}"
            )
        if not 0 < self.learning_rate <= MAX_LEARNING_RATE:
            raise InputError(
                f"learning_rate must be above 0 and at most {MAX_LEARNING_RATE:,}, not "
                f"{self.learning_rate}"
            )

    def described(self) -> dict[str, str | int | float]:
        """Return the settings as plain values, for a file or a report."""
        reference = self.reference
        name = "zero" if reference is None else reference
        return {
            "objective": self.objective,
            "iterations": self.iterations,
            "learning_rate": self.learning_rate,
            "reference": "tensor" if isinstance(name, Tensor) else name,
            "combine": self.combine,
            "precision": self.precision,
            **({} if self.test is None else self.test.described()),
        }


PRESETS: Mapping[str, Settings] = {
    # With signs tested, 6 iterations of "posneg" do what 50 of "all" did
    # (docs/benchmarks/quality.md).
    "tested": Settings(objective="posneg", iterations=6, learning_rate=0.3, test=WindowTest()),
    "fast": Settings(),
    # "RMSProp with a learning rate of 0.01 … A total number of 200 iterations" (Section 4);
    # a(x) = ∇F⁺ ⊙ x + ∇F⁻ ⊙ x (Algorithm 1).
    "paper": Settings(iterations=200, learning_rate=0.01, reference=None, combine="sum"),
}

DEFAULT_PRESET = "tested"


def resolve_settings(preset: str, **overrides: Any) -> Settings:
    """Return a preset's settings with all overrides that are not None.

    Raises:
        InputError: If a setting has no effect with the preset.
    """
    require_known("preset", preset, PRESETS)
    given = {name: value for name, value in overrides.items() if value is not None}
    settings = PRESETS[preset]
    tests = {name: given.pop(name) for name in tuple(given) if name in WindowTest.__annotations__}
    if settings.test is None and tests:
        raise InputError(
            f"{' and '.join(tests)} belong to the preset 'tested'; the preset {preset!r} tests no "
            "windows"
        )
    if settings.test is not None and "combine" in given:
        raise InputError(
            f"combine belongs to the presets 'fast' and 'paper'; with {preset!r}, signs come from "
            "the test"
        )
    test = None if settings.test is None else replace(settings.test, **tests)
    return replace(settings, **given, test=test)
