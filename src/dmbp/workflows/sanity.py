"""`dmbp sanity`: compare maps before and after the model's last layer is re-initialised.

A map that does not change cannot show what the model has learned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.console import Console

from dmbp.attribution import METHODS
from dmbp.attribution.settings import MethodSettings
from dmbp.display import Shown, encode_figure
from dmbp.errors import DMBPError
from dmbp.files import write_all_or_none
from dmbp.metrics import rank_correlation, with_reinitialised_layer
from dmbp.render import PanelStyle, SanityRow, draw_sanity
from dmbp.validation import check_range
from dmbp.workflows.compare import leave_out_on_error, method_settings
from dmbp.workflows.prediction import Prediction, encode_record

MAX_DRAWS = 100
"""Every draw is a copy of the model, and all of them are in memory at once."""

DEFAULT_METHODS = "dmbp,gradient,gradcam,guided_gradcam,guided_backprop"
"""The help of `--methods` in `cli/sanity.py` lists the same."""


@dataclass(frozen=True, eq=False, repr=False)
class SanityCheck(Shown):
    """Each method's maps of a photo before and after the last layer is re-initialised.

    It shows itself in a notebook, by `show()` and by `plot("sanity.png")`. `draws` is how many
    random last layers were drawn. `refusals` maps the name of each method that could not be run to
    the reason.
    """

    prediction: Prediction
    rows: Mapping[str, SanityRow]
    refusals: Mapping[str, str]
    draws: int

    def __repr__(self) -> str:
        """Say how far each method's maps stay the same."""
        found = ", ".join(f"{name} {value:.3f}" for name, value in self.correlations.items())
        return f"<SanityCheck on {self.prediction.name}, |ρ|: {found}>"

    @property
    def correlations(self) -> dict[str, float]:
        """Each method's mean |ρ| between maps before and after; near 0 is right, 1 is wrong."""
        return {name: row.mean for name, row in self.rows.items()}

    def figure(self, style: PanelStyle | None = None) -> Figure:
        """Return a picture of each method's maps before and after.

        Args:
            style: How it looks.
        """
        caption = self.prediction.targets[0].caption("asked about")
        return draw_sanity(self.prediction.photo, caption, list(self.rows.values()), style)

    def to_dict(self) -> dict[str, Any]:
        """Return all correlations as plain values; it is what `dmbp sanity` writes as JSON."""
        prediction = self.prediction
        return {
            "photo": prediction.name,
            "model": prediction.classifier.name,
            "target": prediction.targets[0].record(),
            "draws": self.draws,
            "correlation": self.correlations,
            "refused": dict(self.refusals),
            "correlations": {name: list(row.correlations) for name, row in self.rows.items()},
        }

    def write(
        self, folder: Path, stem: str, style: PanelStyle | None = None, *, suffix: str = ".png"
    ) -> list[Path]:
        """Write the figure and a JSON file of correlations, and return the files' paths."""
        files = {
            folder / f"{stem}-sanity{suffix}": encode_figure(self.figure(style), suffix),
            folder / f"{stem}-sanity.json": encode_record(self.to_dict()),
        }
        write_all_or_none(files)
        return list(files)


def check_sanity(
    prediction: Prediction,
    names: Sequence[str],
    *,
    settings: MethodSettings | None = None,
    draws: int = 5,
    console: Console | None = None,
) -> SanityCheck:
    """Compare each method's map with its maps of models whose last layer is random.

    Args:
        prediction: The photo and the model; its first target is explained.
        names: Names of `dmbp.methods()`.
        settings: Settings by method.
        draws: How many random last layers are drawn.
        console: Where to print correlations, and why a method was left out.

    Returns:
        The maps and correlations, and the methods that could not be run on the model.

    Raises:
        InputError: If `draws` is less than 1 or more than `MAX_DRAWS`.
        SiteError: If the model has no such sites.
        DMBPError: If no method could be run.
    """
    check_range("draws", draws, least=1, most=MAX_DRAWS)
    generator = torch.Generator().manual_seed(0)
    module = prediction.classifier.module
    reinitialised = [
        with_reinitialised_layer(module, prediction.inputs, generator=generator)
        for _ in range(draws)
    ]
    rows: dict[str, SanityRow] = {}
    refusals: dict[str, str] = {}
    for name in names:
        with leave_out_on_error(name, refusals, console, is_only=len(names) == 1):
            overrides = (settings or {}).get(name, {})
            rows[name] = _sanity_row(name, prediction, [module, *reinitialised], overrides)
            if console is not None:
                console.print(f"{name}: |ρ| = {rows[name].mean:.3f}: {rows[name].verdict}")
    if not rows:
        raise DMBPError(next(iter(refusals.values())))
    return SanityCheck(prediction, rows, refusals, draws)


def _sanity_row(
    name: str,
    prediction: Prediction,
    modules: Sequence[torch.nn.Module],
    overrides: Mapping[str, Any],
) -> SanityRow:
    """Compare a method's map of the first module with those of the others.

    `after` is the map with the median correlation.
    """
    settings = method_settings(name, prediction.classifier, overrides)
    before, *after = [
        METHODS[name](module, **settings).attribute(
            prediction.inputs, target=prediction.targets[0].target
        )
        for module in modules
    ]
    correlations = [float(rank_correlation(before, attribution)) for attribution in after]
    middle = sorted(range(len(after)), key=correlations.__getitem__)[len(after) // 2]
    return SanityRow(
        METHODS[name].title,
        *(shown[0].sum(0).cpu().double().numpy() for shown in (before, after[middle])),
        correlations=correlations,
    )
