"""How a decomposition is learned and read out: objectives, settings and presets.

An objective is a loss over the terms: the paper's (Eq. 10) or one of its two ablations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from dmbp.baseline import Baseline
from dmbp.engine import PRECISIONS, Loss
from dmbp.errors import InputError, require_known

OBJECTIVES: Mapping[str, Loss] = {
    "all": Loss(positive=-1, negative=1, nuisance=1),  # y⁻ − y⁺ + |y~|: the paper's DMBP
    "posneg": Loss(positive=-1, negative=1, nuisance=0),  # DMBP⁺⁻ of the ablation table
    "pos": Loss(positive=-1, negative=0, nuisance=0),  # DMBP⁺
}


Combine = Literal["sum", "own_signs"]
Precision = Literal["auto", "float16", "bfloat16", "tf32", "float32"]


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

    Raises:
        InputError: If a setting is unknown or out of range.
    """

    objective: str = "all"
    iterations: int = 50
    learning_rate: float = 0.05
    reference: Baseline = "blur"
    combine: Combine = "own_signs"
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        require_known("objective", self.objective, OBJECTIVES)
        require_known("combine", self.combine, ("sum", "own_signs"))
        require_known("precision", self.precision, PRECISIONS)
        if not isinstance(self.iterations, int) or self.iterations < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"iterations must be a whole number from 0, not {self.iterations}")
        if not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise InputError(f"learning_rate must be above 0, not {self.learning_rate}")

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
        }


PRESETS: Mapping[str, Settings] = {
    "fast": Settings(),
    # "RMSProp with a learning rate of 0.01 … A total number of 200 iterations" (Section 4);
    # a(x) = ∇F⁺ ⊙ x + ∇F⁻ ⊙ x (Algorithm 1).
    "paper": Settings(iterations=200, learning_rate=0.01, reference=None, combine="sum"),
}


def resolve_settings(preset: str, **overrides: Any) -> Settings:
    """Return a preset's settings with all overrides that are not None."""
    require_known("preset", preset, PRESETS)
    overrides = {name: value for name, value in overrides.items() if value is not None}
    return replace(PRESETS[preset], **overrides)
