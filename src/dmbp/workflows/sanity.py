"""What `dmbp sanity` does: maps of a photo before and after the model forgets its last layer."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from dmbp import __version__
from dmbp.attribution import METHODS
from dmbp.attribution.settings import MethodSettings
from dmbp.errors import DMBPError, InputError
from dmbp.metrics import rank_correlation, with_reinitialised_layer
from dmbp.render import PanelStyle, SanityRow, draw_sanity, figure_bytes, write_whole
from dmbp.workflows.compare import leaving_out, method_settings
from dmbp.workflows.prediction import Prediction

DEFAULT_METHODS = "dmbp,gradient,gradcam,guided_gradcam,guided_backprop"


@dataclass(frozen=True)
class SanityCheck:
    """A photo, and for each method its maps before and after."""

    question: Prediction
    rows: Mapping[str, SanityRow]
    refusals: Mapping[str, str]
    draws: int

    def write(
        self, folder: Path, stem: str, style: PanelStyle | None = None, *, suffix: str = ".png"
    ) -> list[Path]:
        """Write the picture and a JSON of correlations; the files' paths."""
        asked = self.question
        caption = f"asked about {asked.named(asked.targets[0])}"
        record = {
            "photo": asked.name,
            "model": asked.classifier.name,
            "target": asked.about(asked.targets[0]),
            "draws": self.draws,
            "correlation": {name: row.mean for name, row in self.rows.items()},
            "refused": dict(self.refusals),
            "correlations": {name: list(row.correlations) for name, row in self.rows.items()},
            "dmbp": __version__,
            "torch": torch.__version__,
        }
        files = {
            folder / f"{stem}-sanity{suffix}": figure_bytes(
                draw_sanity(asked.photo, caption, list(self.rows.values()), style), suffix
            ),
            folder / f"{stem}-sanity.json": (
                json.dumps(record, indent=2, ensure_ascii=False) + "\n"
            ).encode(),
        }
        write_whole(files)
        return list(files)


def check_sanity(
    question: Prediction,
    names: Sequence[str],
    *,
    settings: MethodSettings | None = None,
    draws: int = 5,
    console: Console | None = None,
) -> SanityCheck:
    """Compare each method's map with those of `draws` models with a new last layer."""
    if draws < 1:
        raise InputError(f"draws must be 1 or more, not {draws}")
    generator = torch.Generator().manual_seed(0)
    module = question.classifier.module
    forgetful = [
        with_reinitialised_layer(module, question.inputs, generator=generator) for _ in range(draws)
    ]
    rows: dict[str, SanityRow] = {}
    refusals: dict[str, str] = {}
    for name in names:
        with leaving_out(name, refusals, console, unless=len(names) == 1):
            given = (settings or {}).get(name, {})
            rows[name] = _row(name, question, [module, *forgetful], given)
            if console is not None:
                console.print(f"{name}: |ρ| = {rows[name].mean:.3f}: {rows[name].verdict}")
    if not rows:
        raise DMBPError(next(iter(refusals.values())))
    return SanityCheck(question, rows, refusals, draws)


def _row(
    name: str,
    question: Prediction,
    nets: Sequence[torch.nn.Module],
    given: Mapping[str, Any],
) -> SanityRow:
    """A method's map of the first model, against those of the others."""
    settings = method_settings(name, question.classifier, given)
    before, *after = [
        METHODS[name](net, **settings).attribute(question.inputs, target=question.targets[0])
        for net in nets
    ]
    correlations = [float(rank_correlation(before, one)) for one in after]
    middle = sorted(range(len(after)), key=correlations.__getitem__)[len(after) // 2]
    return SanityRow(
        METHODS[name].title,
        *(one[0].sum(0).cpu().double().numpy() for one in (before, after[middle])),
        correlations=correlations,
    )
