"""What `dmbp compare` does: every method on one photo, scored by insertion."""

import json
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from dmbp import __version__
from dmbp.attribution import METHODS, Method
from dmbp.attribution.settings import MethodSettings
from dmbp.baseline import baseline_for
from dmbp.errors import DMBPError, SiteError
from dmbp.linear import Linearizer
from dmbp.metrics import area, insertion_curve, pixel_ranks, replace_pixels
from dmbp.metrics.insertion import STEPS
from dmbp.models import Classifier
from dmbp.render import (
    ComparedMap,
    PanelStyle,
    draw_comparison,
    draw_insertion,
    duration,
    figure_bytes,
    write_whole,
)
from dmbp.render.colour import Array
from dmbp.workflows.prediction import Prediction

FRACTIONS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7)
"""Where the insertion figure shows the photo as it fills up."""


@dataclass(frozen=True)
class Comparison:
    """A photo, and the maps of several methods for its first target, in the order asked."""

    question: Prediction
    maps: Mapping[str, ComparedMap]
    attributions: Mapping[str, torch.Tensor]
    refusals: Mapping[str, str]
    settings: MethodSettings
    capture_seconds: float

    def write(
        self, folder: Path, stem: str, style: PanelStyle | None = None, *, suffix: str = ".png"
    ) -> list[Path]:
        """Write the comparison, the insertion figure and a JSON of scores; the files' paths."""
        asked = self.question
        target = asked.classifier.class_name(asked.targets[0])
        maps = list(self.maps.values())
        caption = f"{asked.verdict()}\nfor and against: {asked.named(asked.targets[0])}"
        files = {
            folder / f"{stem}-methods{suffix}": figure_bytes(
                draw_comparison(asked.photo, caption, maps, style), suffix
            ),
            folder / f"{stem}-insertion{suffix}": figure_bytes(
                draw_insertion(self._strips(), maps, target), suffix
            ),
            folder / f"{stem}-methods.json": self._record(),
        }
        write_whole(files)
        return list(files)

    def _strips(self) -> dict[str, dict[float, Array]]:
        """The photo as it fills up: by the best method, the best of another kind, and the worst."""
        best, *others = sorted(self.maps, key=lambda name: -self.maps[name].score)
        kinds = [name for name in others if METHODS[name].method is not METHODS[best].method]
        shown = dict.fromkeys([best, *kinds[:1], *kinds[-1:]])
        return {self.maps[name].title: self._strip(name) for name in shown}

    def _strip(self, name: str) -> dict[float, Array]:
        inputs = self.question.inputs
        ranks = pixel_ranks(self.attributions[name], inputs)
        blurred = baseline_for(inputs, "blur")
        return {
            fraction: self.question.shown(
                replace_pixels(
                    inputs, blurred, ranks, torch.tensor([fraction], device=inputs.device)
                )[0]
            )
            for fraction in FRACTIONS
        }

    def _record(self) -> bytes:
        asked = self.question
        about = {
            "photo": asked.name,
            "model": asked.classifier.name,
            "target": asked.about(asked.targets[0]),
            "insertion": {"steps": STEPS, "substrate": "blur"},
            "capture_seconds": round(self.capture_seconds, 4),
            "methods": {
                name: {
                    "settings": {**METHODS[name].settings, **self.settings.get(name, {})},
                    "insertion": item.score,
                    "seconds": round(item.seconds, 4),
                    "curve": list(item.curve),
                }
                for name, item in self.maps.items()
            },
            "refused": dict(self.refusals),
            "dmbp": __version__,
            "torch": torch.__version__,
        }
        return (json.dumps(about, indent=2, ensure_ascii=False) + "\n").encode()


def compare(
    question: Prediction,
    names: Sequence[str],
    *,
    settings: MethodSettings | None = None,
    console: Console | None = None,
) -> Comparison:
    """Run methods on a photo for its first target; one that cannot is left out, and says why."""
    given = settings or {}
    classifier = question.classifier
    # All made before any is run: a setting that makes no sense is no method to be left out.
    methods = {
        name: METHODS[name](
            classifier.module, **method_settings(name, classifier, given.get(name, {}))
        )
        for name in names
    }
    # One capture serves all, so that it is not the first method's to pay for.
    shared = Linearizer(classifier.module)
    started = time.perf_counter()
    with suppress(DMBPError):
        shared.linearize(question.inputs, target=question.targets[0])
    captured = time.perf_counter() - started
    maps: dict[str, ComparedMap] = {}
    attributions: dict[str, torch.Tensor] = {}
    refusals: dict[str, str] = {}
    for name, method in methods.items():
        method.linearizer.share(shared)
        with leaving_out(name, refusals, console, unless=len(names) == 1):
            attributions[name], seconds = _timed(method, question)
            maps[name] = _scored(name, question, attributions[name], seconds)
            if console is not None:
                note = " of pixels row by row: its map is blank" if maps[name].is_blank else ""
                score = f"insertion {maps[name].score:.3f}{note}"
                console.print(f"{name}: {score}, {duration(seconds)}")
    if not maps:
        raise DMBPError(next(iter(refusals.values())))
    return Comparison(question, maps, attributions, refusals, given, captured)


@contextmanager
def leaving_out(
    name: str, refusals: dict[str, str], console: Console | None, *, unless: bool
) -> Generator[None]:
    """Note a method that cannot be run on a model, say why, and go on, `unless` it is the only."""
    try:
        yield
    except SiteError:  # a name typed wrong is no fault of the method
        raise
    except DMBPError as error:
        if unless:
            raise
        refusals[name] = str(error)
        if console is not None:
            console.print(f"{name}: left out: {error}")


def method_settings(name: str, classifier: Classifier, given: Mapping[str, Any]) -> dict[str, Any]:
    """A method's settings, with the model's own probabilities where it reads them."""
    own = {"activation": classifier.probabilities} if METHODS[name].probabilistic else {}
    return {**own, **given}


def _timed(method: Method, question: Prediction) -> tuple[torch.Tensor, float]:
    started = time.perf_counter()
    attribution = method.attribute(question.inputs, target=question.targets[0])
    if attribution.is_cuda:
        torch.cuda.synchronize()
    return attribution, time.perf_counter() - started


def _scored(
    name: str, question: Prediction, attribution: torch.Tensor, seconds: float
) -> ComparedMap:
    classifier = question.classifier
    curve = insertion_curve(
        classifier.module,
        question.inputs,
        question.targets[0],
        attribution,
        activation=classifier.probabilities,
    )
    return ComparedMap(
        title=METHODS[name].title,
        attribution=attribution[0].sum(0).cpu().double().numpy(),
        curve=curve[0].tolist(),
        score=float(area(curve)),
        seconds=seconds,
    )
