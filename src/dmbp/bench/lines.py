"""The lines of a plan's table: what each variant scored on a task by a metric, and the paper's."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from dmbp.bench.answers import Answer, answers
from dmbp.bench.left_out import LeftOut
from dmbp.bench.mean import Mean
from dmbp.bench.paper import AVERAGE, TABLES
from dmbp.bench.plan import Plan, Task
from dmbp.bench.store import Store


@dataclass
class Score:
    """A variant's mean, and how many of its cells failed, were not tried yet or have no score."""

    mean: Mean = field(default_factory=Mean)
    failed: int = 0
    missing: int = 0
    unscored: int = 0


@dataclass(frozen=True)
class Line:
    """One task and metric: scores and the paper's figures by label, over how many photos."""

    task: str
    metric: str
    photos: int
    asked: int
    ours: Mapping[str, Score]
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


def table_lines(plan: Plan, path: Path) -> list[Line]:
    """The lines of a plan's table, from what a store has of it."""
    left_out, lines = LeftOut(plan), list[Line]()
    with closing(Store(path, reading=True)) as store:
        for task in plan.tasks:
            with left_out.unless_asked(task):
                lines += _task_lines(task, plan, store)
    return lines


def _task_lines(task: Task, plan: Plan, store: Store) -> list[Line]:
    labels = [variant.label for variant in plan.variants]
    scores = {metric: {label: Score() for label in labels} for metric in task.metrics}
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
        Line(
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


def _applies(metric: str, answer: Answer) -> bool:
    """Complementary insertion needs another class on the photo, pointing needs boxes."""
    if metric == "cIM":
        return bool(answer.asked.others)
    return metric != "pointing" or answer.asked.sample.annotation is not None


def _count(score: Score, metric: str, answer: Answer) -> None:
    if answer.row is None:
        score.missing += 1
    elif answer.row.failure is not None:
        score.failed += 1
    elif metric in answer.row.scores:
        score.mean.add(answer.row.scores[metric])
    else:
        score.unscored += 1


def average_line(lines: list[Line], plan: Plan) -> Line | None:
    """The mean over the lines of insertion, where the paper's table has one.

    Of variants that have every line that asks something. No error is given: lines of one task share
    their photos.
    """
    averaged = [line for line in lines if line.metric in ("IM", "cIM") and line.asked]
    if not TABLES[plan.paper].average or len(averaged) < 2:
        return None
    ours: dict[str, Score] = {}
    for variant in plan.variants:
        found = [line.means().get(variant.label) for line in averaged]
        values = [value for value in found if value is not None]
        if len(values) == len(averaged):
            parts = [line.ours[variant.label] for line in averaged]
            ours[variant.label] = Score(
                Mean(1, sum(values) / len(values)),
                failed=sum(part.failed for part in parts),
                missing=sum(part.missing for part in parts),
            )
    theirs = TABLES[plan.paper].scores().items()
    figures = {method: figure for (task, _, method), figure in theirs if task == AVERAGE}
    paper = {v.label: figures[v.label] for v in plan.variants if v.label in figures}
    whole = {line.task for line in averaged} >= {
        task for task, _ in TABLES[plan.paper].lines if task != AVERAGE
    }
    return Line("", AVERAGE, 0, 0, ours, paper if whole else {})
