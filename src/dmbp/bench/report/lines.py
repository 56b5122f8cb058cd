"""A mean that grows one value at a time.

Which of some scores are the best, by what is good in their metric.

>>> marks("IM", {"GC": 0.5, "DMBP": 0.7, "Grad": 0.1})
{'GC': 1, 'DMBP': 2}

The lines of a plan's table: what each variant scored on a task by a metric, and the paper's.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from dmbp.bench.paper import AVERAGE, TABLES
from dmbp.bench.plan import Plan, Task
from dmbp.bench.store import Store
from dmbp.bench.units import CellResult, LeftOut, answers


@dataclass
class RunningMean:
    """A mean as it grows, with its standard error."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Count one more."""
        self.count += 1
        self.total += value
        self.squares += value * value

    @property
    def mean(self) -> float:
        """The mean so far."""
        return self.total / self.count

    @property
    def error(self) -> float:
        """Its standard error; zero of a single value."""
        if self.count < 2:
            return 0.0
        variance = max(0.0, self.squares - self.count * self.mean**2) / (self.count - 1)
        return math.sqrt(variance / self.count)


BADNESS: Mapping[str, Callable[[float], float]] = {
    "deletion": lambda score: score,
    "reinitialisation": abs,  # a map that depends on what was learned does not correlate
}
"""Metrics in which less is better; of all others, more is."""


def rank_best(metric: str, scores: Mapping[str, float], *, digits: int = 3) -> dict[str, int]:
    """2 for the best as it is printed, 1 for the second; those that are equal share."""
    badness = BADNESS.get(metric, lambda score: -score)
    printed = {label: badness(round(score, digits)) for label, score in scores.items()}
    order = sorted(set(printed.values()))[:2]
    return {label: 2 - order.index(bad) for label, bad in printed.items() if bad in order}


@dataclass
class ScoreSummary:
    """A variant's mean, and how many of its cells failed, were not tried yet or have no score."""

    mean: RunningMean = field(default_factory=RunningMean)
    failed: int = 0
    missing: int = 0
    unscored: int = 0


@dataclass(frozen=True)
class TableLine:
    """One task and metric: scores and the paper's figures by label, over how many photos."""

    task: str
    metric: str
    photos: int
    asked: int
    ours: Mapping[str, ScoreSummary]
    paper: Mapping[str, float]

    @property
    def is_whole(self) -> bool:
        """Whether all is computed."""
        return not any(score.missing for score in self.ours.values())

    @property
    def is_fair(self) -> bool:
        """Whether all means are over as many questions; a broken photo fails for every method."""
        there = [score for score in self.ours.values() if score.mean.count]
        return self.is_whole and len({(s.failed, s.unscored) for s in there}) <= 1

    def means(self) -> dict[str, float]:
        """The means there are."""
        return {label: score.mean.mean for label, score in self.ours.items() if score.mean.count}


def table_lines(plan: Plan, path: Path) -> list[TableLine]:
    """The lines of a plan's table, from what a store has of it."""
    left_out, lines = LeftOut(plan), list[TableLine]()
    with closing(Store(path, reading=True)) as store:
        for task in plan.tasks:
            with left_out.unless_asked(task):
                lines += _task_lines(task, plan, store)
    return lines


def _task_lines(task: Task, plan: Plan, store: Store) -> list[TableLine]:
    labels = [variant.label for variant in plan.variants]
    scores = {metric: {label: ScoreSummary() for label in labels} for metric in task.metrics}
    photos: dict[str, set[str]] = {metric: set() for metric in task.metrics}
    asked = dict.fromkeys(task.metrics, 0)
    for answer in answers(task, plan, store):
        for metric in task.metrics:
            if _applies(metric, answer):
                photos[metric].add(answer.asked.sample.name)
                asked[metric] += answer.variant.label == labels[0]
                _count(scores[metric][answer.variant.label], metric, answer)
    figures = TABLES[plan.paper].scores()
    return [
        TableLine(
            task.name,
            metric,
            len(photos[metric]),
            asked[metric],
            scores[metric],
            {
                label: figures[task.name, metric, label]
                for label in labels
                if (task.name, metric, label) in figures
            },
        )
        for metric in task.metrics
    ]


def _applies(metric: str, answer: CellResult) -> bool:
    """Complementary insertion needs another class on the photo, pointing needs boxes."""
    if metric == "cIM":
        return bool(answer.asked.others)
    return metric != "pointing" or answer.asked.sample.annotation is not None


def _count(score: ScoreSummary, metric: str, answer: CellResult) -> None:
    if answer.row is None:
        score.missing += 1
    elif answer.row.failure is not None:
        score.failed += 1
    elif metric in answer.row.scores:
        score.mean.add(answer.row.scores[metric])
    else:
        score.unscored += 1


def average_line(lines: list[TableLine], plan: Plan) -> TableLine | None:
    """The mean over the lines of insertion, where the paper's table has one.

    Of variants that have every line that asks something. No error is given: lines of one task share
    their photos.
    """
    averaged = [line for line in lines if line.metric in ("IM", "cIM") and line.asked]
    if not TABLES[plan.paper].average or len(averaged) < 2:
        return None
    ours: dict[str, ScoreSummary] = {}
    for variant in plan.variants:
        found = [line.means().get(variant.label) for line in averaged]
        values = [value for value in found if value is not None]
        if len(values) == len(averaged):
            parts = [line.ours[variant.label] for line in averaged]
            ours[variant.label] = ScoreSummary(
                RunningMean(1, sum(values) / len(values)),
                failed=sum(part.failed for part in parts),
                missing=sum(part.missing for part in parts),
            )
    theirs = TABLES[plan.paper].scores().items()
    figures = {method: figure for (task, _, method), figure in theirs if task == AVERAGE}
    paper = {v.label: figures[v.label] for v in plan.variants if v.label in figures}
    whole = {line.task for line in averaged} >= {
        task for task, _ in TABLES[plan.paper].lines if task != AVERAGE
    }
    return TableLine("", AVERAGE, 0, 0, ours, paper if whole else {})
