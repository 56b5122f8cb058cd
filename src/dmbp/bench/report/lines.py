"""The lines of a plan's table: the mean score of each variant by task and metric, and the paper's.

The best two scores of a line are ranked; whether more is better depends on the metric:

    >>> rank_best("IM", {"GC": 0.5, "DMBP": 0.7, "Grad": 0.1})
    {'GC': 1, 'DMBP': 2}
"""

import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from dmbp.bench.paper import AVERAGE, TABLES
from dmbp.bench.plan import Plan, Task
from dmbp.bench.store import ResultRow, Store
from dmbp.bench.units import PhotoTarget, SkippedTasks, results
from dmbp.metric_table import METRICS, badness


@dataclass
class RunningMean:
    """A mean and its standard error, computed without keeping the values."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        self.count += 1
        self.total += value
        self.squares += value * value

    @property
    def mean(self) -> float:
        """The mean so far."""
        return self.total / self.count

    @property
    def error(self) -> float:
        """The standard error of the mean; zero for a single value."""
        if self.count < 2:
            return 0.0
        variance = max(0.0, self.squares - self.count * self.mean**2) / (self.count - 1)
        return math.sqrt(variance / self.count)


def rank_best(metric: str, scores: Mapping[str, float], *, digits: int = 3) -> dict[str, int]:
    """Rank the best two scores of a line, rounded as they are printed.

    Args:
        metric: The metric of the scores.
        scores: Scores by label.
        digits: Decimal places that are printed.

    Returns:
        2 for the label of the best score and 1 for the second; equal scores share a rank. Nothing
        for metrics in which no score is better.
    """
    found = {label: badness(metric, round(score, digits)) for label, score in scores.items()}
    printed = {label: bad for label, bad in found.items() if bad is not None}
    order = sorted(set(printed.values()))[:2]
    return {label: 2 - order.index(bad) for label, bad in printed.items() if bad in order}


@dataclass
class ScoreSummary:
    """A variant's mean, and how many of its cells failed, are missing or have no score."""

    mean: RunningMean = field(default_factory=RunningMean)
    failed: int = 0
    missing: int = 0
    unscored: int = 0


@dataclass(frozen=True)
class TableLine:
    """A task and a metric: our scores and the paper's figures by label.

    `photos` and `questions` are how many of them the metric applies to.
    """

    task: str
    metric: str
    photos: int
    questions: int
    ours: Mapping[str, ScoreSummary]
    paper: Mapping[str, float]

    @property
    def is_complete(self) -> bool:
        """Whether every cell has been tried."""
        return not any(score.missing for score in self.ours.values())

    @property
    def is_fair(self) -> bool:
        """Whether all means are over the same number of questions, so that they can be compared."""
        scored = [score for score in self.ours.values() if score.mean.count]
        return self.is_complete and len({(s.failed, s.unscored) for s in scored}) <= 1

    def means(self) -> dict[str, float]:
        """Return the mean of every label that has one."""
        return {label: score.mean.mean for label, score in self.ours.items() if score.mean.count}


def table_lines(plan: Plan, path: Path) -> list[TableLine]:
    """Return the lines of a plan's table, from the rows that a store has for it.

    Args:
        plan: The plan.
        path: The file of results.

    Raises:
        DMBPError: If the store cannot be read, or no task can run.
    """
    skipped, lines = SkippedTasks(plan), list[TableLine]()
    with closing(Store(path, read_only=True)) as store:
        for task in plan.tasks:
            with skipped.skip_on_error(task):
                lines += _task_lines(task, plan, store)
    return lines


def _task_lines(task: Task, plan: Plan, store: Store) -> list[TableLine]:
    labels = [variant.label for variant in plan.variants]
    first = next((variant.label for variant in plan.variants_of(task)), None)
    scores = {metric: {label: ScoreSummary() for label in labels} for metric in task.metrics}
    photos: dict[str, set[str]] = {metric: set() for metric in task.metrics}
    questions = dict.fromkeys(task.metrics, 0)
    for target, variant, row in results(task, plan, store):
        for metric in task.metrics:
            if _applies(metric, target):
                photos[metric].add(target.sample.name)
                questions[metric] += variant.label == first
                _count(scores[metric][variant.label], metric, row)
    figures = TABLES[plan.paper].scores()
    return [
        TableLine(
            task.name,
            metric,
            len(photos[metric]),
            questions[metric],
            scores[metric],
            {
                label: figures[task.name, metric, label]
                for label in labels
                if (task.name, metric, label) in figures
            },
        )
        for metric in task.metrics
    ]


def _applies(metric: str, target: PhotoTarget) -> bool:
    """Return whether a question has what a metric needs: other classes, or a region."""
    needs = METRICS[metric].needs
    if needs == "classes":
        return bool(target.others)
    has_region = target.sample.annotation is not None or target.mask is not None
    return needs != "region" or has_region


def _count(score: ScoreSummary, metric: str, row: ResultRow | None) -> None:
    if row is None or metric not in row.tried:
        score.missing += 1
    elif metric in row.scores:
        score.mean.add(row.scores[metric])
    elif row.failure is not None:
        score.failed += 1
    else:
        score.unscored += 1


def average_line(lines: list[TableLine], plan: Plan) -> TableLine | None:
    """Return the mean over the IM and cIM lines, or None if the paper's table has no such line.

    There must be at least two lines. Only variants with a score in every line that has questions
    are averaged. There is no standard error, because lines of one task share their photos.
    """
    averaged = [line for line in lines if line.metric in ("IM", "cIM") and line.questions]
    if not TABLES[plan.paper].average or len(averaged) < 2:
        return None
    ours: dict[str, ScoreSummary] = {}
    for variant in plan.variants:
        means = [line.means().get(variant.label) for line in averaged]
        values = [value for value in means if value is not None]
        if len(values) == len(averaged):
            summaries = [line.ours[variant.label] for line in averaged]
            ours[variant.label] = ScoreSummary(
                RunningMean(1, sum(values) / len(values)),
                failed=sum(summary.failed for summary in summaries),
                missing=sum(summary.missing for summary in summaries),
            )
    scores = TABLES[plan.paper].scores().items()
    figures = {method: figure for (task, _, method), figure in scores if task == AVERAGE}
    paper = {v.label: figures[v.label] for v in plan.variants if v.label in figures}
    has_all_tasks = {line.task for line in averaged} >= {
        task for task, _ in TABLES[plan.paper].lines if task != AVERAGE
    }
    return TableLine("", AVERAGE, 0, 0, ours, paper if has_all_tasks else {})
