"""What a worker does: maps of a few questions by one method, their scores, and the rows of both."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dmbp import metrics
from dmbp.attribution import METHODS, Method
from dmbp.bench.cell import Cell
from dmbp.bench.plan import Task
from dmbp.bench.questions import Asked
from dmbp.bench.store import Row
from dmbp.data import read_photo
from dmbp.errors import DMBPError
from dmbp.metrics.curve import CurveOptions, area
from dmbp.models import Classifier

SCORED_AT_ONCE = 256


@dataclass(frozen=True)
class Job:
    """One question to one method."""

    asked: Asked
    cell: Cell


class Worker:
    """A model and the methods on it, made once."""

    def __init__(self, task: Task, classifier: Classifier, weights: str) -> None:
        self.task = task
        self._classifier = classifier
        self._weights = weights
        self._forgetful: nn.Module | None = None
        self._methods: dict[tuple[str, str, bool], Method] = {}
        parameter = next(classifier.module.parameters(), None)
        self._device = torch.device("cpu") if parameter is None else parameter.device

    def job(self, asked: Asked, method: str, settings: Mapping[str, Any]) -> Job:
        """A question to a method, with its key."""
        seen = self._classifier.preprocessing
        scoring = {
            "metrics": list(self.task.metrics),
            "steps": self.task.steps,
            "activation": self._classifier.activation,
            "others": list(asked.others) if "cIM" in self.task.metrics else [],
            "seen": [seen.fit, seen.resize, seen.crop, *seen.mean, *seen.std],
        }
        cell = Cell(
            dataset=self.task.dataset,
            image=asked.sample.name,
            photo=asked.photo,
            target=str(asked.index),
            model=self.task.model,
            weights=self._weights,
            method=method,
            settings=dict(settings),
            scoring=scoring,
        )
        return Job(asked, cell)

    def rows(self, jobs: Sequence[Job]) -> list[Row]:
        """The rows of some jobs of one method; one that fails does not take the others along."""
        rows: list[Row] = []
        ready: dict[torch.Size, list[tuple[Job, Tensor]]] = {}
        for job in jobs:
            try:
                tensor = self._input(job.asked)
                ready.setdefault(tensor.shape, []).append((job, tensor))
            except DMBPError as error:
                rows.append(Row(job.cell, failure=_sentence(error)))
        for group in ready.values():
            rows += self._together(group)
        return rows

    def _input(self, asked: Asked) -> Tensor:
        if asked.problem is not None:
            raise DMBPError(asked.problem)
        seen = self._classifier.preprocessing
        return seen.tensor(seen.view(read_photo(asked.sample.path)))

    def _together(self, group: Sequence[tuple[Job, Tensor]]) -> list[Row]:
        try:
            return self._scored([job for job, _ in group], torch.cat([x for _, x in group]))
        except (DMBPError, RuntimeError, ArithmeticError) as error:
            if len(group) == 1:
                return [Row(group[0][0].cell, failure=_sentence(error))]
        return [row for one in group for row in self._together([one])]

    def _scored(self, jobs: Sequence[Job], inputs: Tensor) -> list[Row]:
        inputs = inputs.to(self._device)
        target = [job.asked.index for job in jobs]
        started = time.perf_counter()
        maps = self._method(jobs[0].cell).attribute(inputs, target=target)
        if maps.is_cuda:
            torch.cuda.synchronize()
        seconds = (time.perf_counter() - started) / len(jobs)
        scores: list[dict[str, float]] = [{} for _ in jobs]
        curves: list[dict[str, list[float]]] = [{} for _ in jobs]
        for metric in self.task.metrics:
            self._score(metric, jobs, inputs, maps, scores, curves)
        return [Row(job.cell, scores[k], curves[k], seconds=seconds) for k, job in enumerate(jobs)]

    def _score(
        self,
        metric: str,
        jobs: Sequence[Job],
        inputs: Tensor,
        maps: Tensor,
        scores: list[dict[str, float]],
        curves: list[dict[str, list[float]]],
    ) -> None:
        options: CurveOptions = {
            "steps": self.task.steps,
            "activation": self._classifier.activation,
            "internal_batch_size": SCORED_AT_ONCE,
        }
        module = self._classifier.module
        target = [job.asked.index for job in jobs]
        if metric in ("IM", "deletion"):
            curve = metrics.insertion_curve if metric == "IM" else metrics.deletion_curve
            found = curve(module, inputs, target, maps, **options)
            for k, (line, score) in enumerate(zip(found.tolist(), area(found), strict=True)):
                scores[k][metric], curves[k][metric] = float(score), [round(p, 6) for p in line]
        elif metric == "cIM":
            several = [k for k, job in enumerate(jobs) if job.asked.others]
            if several:
                others = [jobs[k].asked.others for k in several]
                found = metrics.complementary_insertion(
                    module, inputs[several], others, maps[several], **options
                )
                for k, score in zip(several, found.tolist(), strict=True):
                    scores[k][metric] = score
        elif metric == "reinitialisation":
            found = metrics.rank_correlation(maps, self._maps_forgotten(jobs, inputs))
            for k, score in enumerate(found.tolist()):
                scores[k][metric] = score
        else:
            self._point(jobs, maps, scores)

    def _maps_forgotten(self, jobs: Sequence[Job], inputs: Tensor) -> Tensor:
        """The maps of a model that has forgotten its last layer, the same for all photos."""
        if self._forgetful is None:
            self._forgetful = metrics.reinitialised(self._classifier.module, inputs[:1])
        target = [job.asked.index for job in jobs]
        return self._method(jobs[0].cell, forgetful=True).attribute(inputs, target=target)

    def _point(self, jobs: Sequence[Job], maps: Tensor, scores: list[dict[str, float]]) -> None:
        """The pointing game, where boxes are known and the photo is squeezed."""
        side = maps.shape[-1]
        for k, job in enumerate(jobs):
            annotation = job.asked.sample.annotation
            if annotation is not None and self._classifier.preprocessing.fit == "squeeze":
                boxes = annotation.boxes(str(job.asked.label), side=side)
                scores[k]["pointing"] = float(metrics.pointing_game(maps[k : k + 1].cpu(), [boxes]))

    def _method(self, cell: Cell, *, forgetful: bool = False) -> Method:
        """A cell's method, made once, on the model or on the one that has forgotten."""
        name = (cell.method, json.dumps(cell.settings, sort_keys=True), forgetful)
        if name not in self._methods:
            row = METHODS[cell.method]
            settings = dict(cell.settings)
            if row.probabilistic:
                settings["activation"] = self._classifier.activation
            module = self._forgetful if forgetful else self._classifier.module
            assert module is not None
            self._methods[name] = row(module, **settings)
        return self._methods[name]


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
