"""What a plan's plot shows: insertion curves by method, and scores against seconds a map."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from dmbp.bench.plan import Plan, Task
from dmbp.bench.report.lines import RunningMean
from dmbp.bench.store import ResultRow, Store
from dmbp.bench.units import LeftOut, answers
from dmbp.errors import InputError
from dmbp.render import encode_figure, write_all_or_none
from dmbp.render.benchmark import MethodMark, TaskPlot, draw_benchmark


@dataclass
class Gathered:
    """A variant's means as they grow: score, seconds, and the curve point by point."""

    score: RunningMean = field(default_factory=RunningMean)
    seconds: RunningMean = field(default_factory=RunningMean)
    curve: list[RunningMean] = field(default_factory=list)

    def add(self, row: ResultRow, metric: str) -> None:
        """Count one more row."""
        self.score.add(row.scores[metric])
        self.seconds.add(row.seconds or 0.0)
        points = row.curves.get(metric, ())
        self.curve = self.curve or [RunningMean() for _ in points]
        for mean, value in zip(self.curve, points, strict=True):
            mean.add(value)


def plot(plan: Plan, store: Path, out: Path) -> None:
    """Draw a plan's results into a .png, .svg or .pdf file."""
    left_out, found = LeftOut(plan), list[TaskPlot]()
    with closing(Store(store, reading=True)) as results:
        for task in plan.tasks:
            with left_out.unless_asked(task):
                found.append(_task_plot(task, plan, results))
    drawn = [task for task in found if task.marks]
    if not drawn:
        raise InputError(
            f"{store} has no scores of this plan by the first metric of a task: `dmbp bench run` "
            "computes what is missing, `dmbp bench table` says what has none"
        )
    write_all_or_none({out: encode_figure(draw_benchmark(drawn), out.suffix)})


def _task_plot(task: Task, plan: Plan, store: Store) -> TaskPlot:
    """The first metric of a task, by variant."""
    metric = task.metrics[0]
    photos: set[str] = set()
    gathered = {variant.label: Gathered() for variant in plan.variants}
    for answer in answers(task, plan, store):
        if answer.row is not None and metric in answer.row.scores:
            photos.add(answer.asked.sample.name)
            gathered[answer.variant.label].add(answer.row, metric)
    ours = {variant.label for variant in plan.variants if variant.method.startswith("dmbp")}
    marks = [
        _mark(label, own, is_ours=label in ours)
        for label, own in gathered.items()
        if own.score.count
    ]
    return TaskPlot(task.name, metric, len(photos), marks)


def _mark(label: str, own: Gathered, *, is_ours: bool) -> MethodMark:
    curve: Sequence[float] = [mean.mean for mean in own.curve]
    errors = [mean.error for mean in own.curve]
    score, seconds = own.score, own.seconds.mean
    return MethodMark(label, score.mean, score.error, seconds, curve, errors, is_ours)
