"""One photo's answer, and everything that can be written about it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path

import numpy
import torch
from PIL import Image

from dmbp import __version__
from dmbp.decompose import Decomposition
from dmbp.decompose.reference import reference_for
from dmbp.metrics import area, insertion_curve, pixel_ranks, replaced
from dmbp.metrics.curve import STEPS
from dmbp.photo_question import PhotoQuestion
from dmbp.render import (
    PanelRow,
    PanelStyle,
    ReportPhoto,
    ReportTarget,
    draw_panel,
    figure_bytes,
    insertion_gif,
    panel_rows,
)


@dataclass(frozen=True)
class Explanation:
    """A photo, the classes asked about, and a decomposition with a row for each."""

    question: PhotoQuestion
    decomposition: Decomposition
    settings: Mapping[str, str | int | float]
    seconds: dict[str, float]

    def sentence(self) -> str:
        """What was predicted and what was explained."""
        asked = ", ".join(self.question.named(target) for target in self.question.targets)
        return f"{self.question.verdict()}; explained {asked}"

    def picture(self, style: PanelStyle | None = None, *, suffix: str = ".png") -> bytes:
        """The panel as a file's content."""
        return figure_bytes(draw_panel(self._rows(), style), suffix)

    def record(self) -> bytes:
        """Terms, exactness, settings and timings as a JSON file's content."""
        d = self.decomposition
        about = {
            "photo": self.question.name,
            "model": self.question.classifier.name,
            "weights": self.question.classifier.weights,
            "preprocessing": self.question.classifier.preprocessing.described(),
            "predicted": self.question.about(self.question.best),
            "targets": [
                {
                    **self.question.about(target),
                    "terms": {
                        "output": d.output[row].item(),
                        "positive": d.positive_output[row].item(),
                        "negative": d.negative_output[row].item(),
                        "nuisance": d.nuisance_output[row].item(),
                    },
                }
                for row, target in enumerate(self.question.targets)
            ],
            "exactness": d.exactness,
            "approximation_error": d.approximation_error,
            "settings": dict(self.settings),
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
            "dmbp": __version__,
            "torch": torch.__version__,
        }
        return (json.dumps(about, indent=2, ensure_ascii=False) + "\n").encode()

    def raw_files(self, folder: Path, stem: str) -> dict[Path, bytes]:
        """The attributions (targets, channel, height, width) as `.npy`, and a 16-bit PNG a target.

        In the PNG mid-grey (32768) is zero and the largest magnitude of the map is 32767 from it.
        """
        attribution = self.decomposition.attribution.cpu().float().numpy()
        buffer = BytesIO()
        numpy.save(buffer, attribution)
        files = {folder / f"{stem}.npy": buffer.getvalue()}
        for target, pixels in zip(self.question.targets, attribution.sum(1), strict=True):
            largest = max(float(numpy.abs(pixels).max()), 1e-30)
            levels = numpy.round(32768 + 32767 * pixels / largest).astype(numpy.uint16)
            buffer = BytesIO()
            Image.fromarray(levels).save(buffer, "PNG")
            files[folder / f"{stem}-{self.question.slug(target)}-map.png"] = buffer.getvalue()
        return files

    def gif_files(self, folder: Path, stem: str) -> dict[Path, bytes]:
        """For every target, a GIF of its strongest pixels being put into a blurred photo."""
        d = self.decomposition
        ranks, blurred = pixel_ranks(d.attribution, d.inputs), reference_for(d.inputs, "blur")
        fractions = torch.linspace(0, 1, STEPS + 1)
        files: dict[Path, bytes] = {}
        for row, target in enumerate(self.question.targets):
            one = slice(row, row + 1)
            frames = [
                self.question.shown(replaced(d.inputs[one], blurred[one], ranks[one], fraction)[0])
                for fraction in fractions[:, None]
            ]
            called = self.question.classifier.class_name(target)
            gif = insertion_gif(frames, self._insertion[row], called)
            files[folder / f"{stem}-{self.question.slug(target)}.gif"] = gif
        return files

    def report_photo(self) -> ReportPhoto:
        """The photo's part of a report."""
        found = self.decomposition
        ends = {
            "y⁺": (found.history.positive, found.positive_output),
            "y⁻": (found.history.negative, found.negative_output),
            "y~": (found.history.nuisance, found.nuisance_output),
        }
        targets = [
            ReportTarget(
                row=panel_row,
                name=self.question.classifier.class_name(target),
                probability=self.question.probability(target),
                history={
                    name: [*before[:, row].tolist(), float(last[row])]
                    for name, (before, last) in ends.items()
                },
                insertion=self._insertion[row],
                insertion_score=float(area(torch.tensor(self._insertion[row])[None])),
                exactness=self.decomposition.exactness,
                seconds=self.seconds["explaining"],
            )
            for row, (target, panel_row) in enumerate(
                zip(self.question.targets, self._rows(), strict=True)
            )
        ]
        return ReportPhoto(self.question.name, self.question.verdict(), targets)

    @cached_property
    def _insertion(self) -> list[list[float]]:
        d = self.decomposition
        curve = insertion_curve(
            self.question.classifier.module,
            d.inputs,
            self.question.targets,
            d.attribution,
            activation=self.question.classifier.probabilities,
        )
        return curve.tolist()

    def _rows(self) -> list[PanelRow]:
        asked = self.question
        return panel_rows(
            self.decomposition,
            photos=[asked.photo] * len(asked.targets),
            photo_captions=[asked.verdict()] * len(asked.targets),
            target_captions=[f"for and against: {asked.named(k)}" for k in asked.targets],
        )
