"""A plan's plot: insertion curves by method, and scores against the seconds a map takes."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from dmbp.bench.plan import Plan, Task
from dmbp.bench.report.lines import RunningMean
from dmbp.bench.store import ResultRow, Store
from dmbp.bench.units import SkippedTasks, results
from dmbp.errors import InputError
from dmbp.render import encode_figure, write_all_or_none
from dmbp.render.benchmark import MethodMark, TaskPlot, draw_benchmark


@dataclass
class VariantMeans:
    """A variant's means as they grow: score, seconds, and each point of the curve."""

    score: RunningMean = field(default_factory=RunningMean)
    seconds: RunningMean = field(default_factory=RunningMean)
    curve: list[RunningMean] = field(default_factory=list)

    def add(self, row: ResultRow, metric: str) -> None:
        """Add a row."""
        self.score.add(row.scores[metric])
        self.seconds.add(row.seconds or 0.0)
        points = row.curves.get(metric, ())
        self.curve = self.curve or [RunningMean() for _ in points]
        for mean, value in zip(self.curve, points, strict=True):
            mean.add(value)


def plot(plan: Plan, store: Path, out: Path) -> None:
    """Draw a plan's results into a file.

    Args:
        plan: The plan.
        store: The file of results.
        out: The picture to write, .png, .svg or .pdf.

    Raises:
        InputError: There is nothing to draw, or the file has another ending.
    """
    skipped, found = SkippedTasks(plan), list[TaskPlot]()
    with closing(Store(store, read_only=True)) as rows:
        for task in plan.tasks:
            with skipped.skip_on_error(task):
                found.append(task_plot(task, plan, rows))
    drawn = [task for task in found if task.marks]
    if not drawn:
        raise InputError(
            f"{store} has no scores of this plan by the first metric of a task: `dmbp bench run` "
            "computes what is missing, `dmbp bench table` says what has none"
        )
    write_all_or_none({out: encode_figure(draw_benchmark(drawn), out.suffix)})


def task_plot(task: Task, plan: Plan, store: Store) -> TaskPlot:
    """Return what a plot shows of a task: its first metric, by variant."""
    metric = task.metrics[0]
    photos: set[str] = set()
    means = {variant.label: VariantMeans() for variant in plan.variants}
    for target, variant, row in results(task, plan, store):
        if row is not None and metric in row.scores:
            photos.add(target.sample.name)
            means[variant.label].add(row, metric)
    ours = {variant.label for variant in plan.variants if variant.method.startswith("dmbp")}
    marks = [
        _mark(label, own, is_ours=label in ours) for label, own in means.items() if own.score.count
    ]
    return TaskPlot(task.name, metric, len(photos), marks)


def _mark(label: str, own: VariantMeans, *, is_ours: bool) -> MethodMark:
    curve: Sequence[float] = [mean.mean for mean in own.curve]
    errors = [mean.error for mean in own.curve]
    score, seconds = own.score, own.seconds.mean
    return MethodMark(label, score.mean, score.error, seconds, curve, errors, is_ours)
