"""One photo's answer, and everything that can be written about it."""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image
from torch import Tensor

from dmbp import __version__
from dmbp.decompose import Decomposition
from dmbp.decompose.reference import reference_for
from dmbp.metrics import area, insertion_curve, pixel_ranks, replaced
from dmbp.metrics.curve import STEPS
from dmbp.models import Classifier
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
from dmbp.render.colour import Array


@dataclass(frozen=True)
class Explanation:
    """A photo as the model saw it, its outputs (classes,), and a decomposition, a row a target."""

    name: str
    view: Image.Image
    classifier: Classifier
    outputs: Tensor
    targets: list[int]
    decomposition: Decomposition
    seconds: dict[str, float]

    def sentence(self) -> str:
        """What was predicted and what was explained."""
        asked = ", ".join(self._named(target) for target in self.targets)
        return f"{self._verdict()}; explained {asked}"

    def picture(self, style: PanelStyle | None = None, *, suffix: str = ".png") -> bytes:
        """The panel as a file's content."""
        return figure_bytes(draw_panel(self._rows(), style), suffix)

    def record(self) -> bytes:
        """Terms, exactness, settings and timings as a JSON file's content."""
        d = self.decomposition
        about = {
            "photo": self.name,
            "model": self.classifier.name,
            "predicted": self._about(self._best()),
            "targets": [
                {
                    **self._about(target),
                    "terms": {
                        "output": d.output[row].item(),
                        "positive": d.positive_output[row].item(),
                        "negative": d.negative_output[row].item(),
                        "nuisance": d.nuisance_output[row].item(),
                    },
                }
                for row, target in enumerate(self.targets)
            ],
            "exactness": d.exactness,
            "settings": d.settings.described(),
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
        for target, pixels in zip(self.targets, attribution.sum(1), strict=True):
            largest = max(float(numpy.abs(pixels).max()), 1e-30)
            levels = numpy.round(32768 + 32767 * pixels / largest).astype(numpy.uint16)
            buffer = BytesIO()
            Image.fromarray(levels).save(buffer, "PNG")
            files[folder / f"{stem}-{self._slug(target)}-map.png"] = buffer.getvalue()
        return files

    def gif_files(self, folder: Path, stem: str) -> dict[Path, bytes]:
        """For every target, a GIF of its strongest pixels being put into a blurred photo."""
        d = self.decomposition
        ranks, blurred = pixel_ranks(d.attribution, d.inputs), reference_for(d.inputs, "blur")
        fractions = torch.linspace(0, 1, STEPS + 1)
        files: dict[Path, bytes] = {}
        for row, target in enumerate(self.targets):
            one = slice(row, row + 1)
            frames = [
                self._shown(replaced(d.inputs[one], blurred[one], ranks[one], fraction)[0])
                for fraction in fractions[:, None]
            ]
            gif = insertion_gif(frames, self._insertion[row], self.classifier.class_name(target))
            files[folder / f"{stem}-{self._slug(target)}.gif"] = gif
        return files

    def report_photo(self) -> ReportPhoto:
        """The photo's part of a report."""
        history = self.decomposition.history
        targets = [
            ReportTarget(
                row=panel_row,
                name=self.classifier.class_name(target),
                probability=self._probability(target),
                history={
                    "y⁺": history.positive[:, row].tolist(),
                    "y⁻": history.negative[:, row].tolist(),
                    "y~": history.nuisance[:, row].tolist(),
                },
                insertion=self._insertion[row],
                insertion_score=float(area(torch.tensor(self._insertion[row])[None])),
                exactness=self.decomposition.exactness,
                seconds=self.seconds["explaining"],
            )
            for row, (target, panel_row) in enumerate(zip(self.targets, self._rows(), strict=True))
        ]
        return ReportPhoto(self.name, self._verdict(), targets)

    @cached_property
    def _insertion(self) -> list[list[float]]:
        d = self.decomposition
        curve = insertion_curve(
            self.classifier.module,
            d.inputs,
            self.targets,
            d.attribution,
            activation=self.classifier.probabilities,
        )
        return curve.tolist()

    def _rows(self) -> list[PanelRow]:
        photo = numpy.asarray(self.view, dtype=numpy.float64) / 255
        return panel_rows(
            self.decomposition,
            photos=[photo] * len(self.targets),
            photo_captions=[self._verdict()] * len(self.targets),
            target_captions=[f"for and against: {self._named(target)}" for target in self.targets],
        )

    def _shown(self, image: Tensor) -> Array:
        """An input as a picture again: RGB in [0, 1]."""
        preprocessing = self.classifier.preprocessing
        pixels = image.detach().cpu().double().permute(1, 2, 0).numpy()
        return pixels * numpy.array(preprocessing.std) + numpy.array(preprocessing.mean)

    def _verdict(self) -> str:
        """The prediction; where classes do not compete and none is likely, there is none."""
        best = self._best()
        sure = self.classifier.is_exclusive(self.outputs) or self._probability(best) >= 0.5
        return f"{'predicted' if sure else 'nothing sure, most likely'} {self._named(best)}"

    def _best(self) -> int:
        return int(self.outputs.argmax())

    def _probability(self, index: int) -> float:
        return float(self.classifier.probabilities(self.outputs)[index])

    def _named(self, index: int) -> str:
        return f"{self.classifier.class_name(index)} ({self._probability(index):.0%})"

    def _slug(self, index: int) -> str:
        """The class in a file's name; its number too, for two classes may share a name."""
        words = re.sub(r"[^a-z0-9]+", "-", self.classifier.class_name(index).lower())
        return f"{index}-{words}".strip("-")

    def _about(self, index: int) -> dict[str, Any]:
        return {
            "class": index,
            "name": self.classifier.class_name(index),
            "probability": self._probability(index),
        }
