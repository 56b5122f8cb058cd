"""Tables in the paper's layout: a line for each task and metric, a column for each method.

The best of a line stands in brackets, the best two are bold. Where the paper has figures for a
line, they follow it.
"""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dmbp.attribution import METHODS
from dmbp.bench.paper import paper_scores
from dmbp.bench.plan import Plan, Task
from dmbp.bench.store import Row, Store
from dmbp.data.dataset import read_dataset
from dmbp.names import known


@dataclass
class Mean:
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


@dataclass(frozen=True)
class Line:
    """One task and metric: what each method scored, in the plan's order, and the paper's."""

    task: str
    metric: str
    ours: Mapping[str, Mean]
    paper: Mapping[str, float]


def table_lines(plan: Plan, path: Path) -> list[Line]:
    """The lines of a plan's table, from what a store has of it."""
    store = Store(path)
    try:
        lines: list[Line] = []
        for task in plan.tasks:
            means = _means(task, plan, store)
            lines += [_line(task, metric, plan, means) for metric in task.metrics]
        return lines
    finally:
        store.close()


def _means(task: Task, plan: Plan, store: Store) -> dict[tuple[str, str], Mean]:
    """By method and metric, over the photos of a task."""
    images = {s.name for s in read_dataset(task.dataset, task.path).first(task.first).samples}
    weights = store.latest_weights(task.dataset, task.model)
    means: dict[tuple[str, str], Mean] = {}
    for row in store.rows(dataset=task.dataset, model=task.model, weights=weights):
        if row.cell.image in images and _is_asked(row, task, plan):
            for metric, score in row.scores.items():
                means.setdefault((row.cell.method, metric), Mean()).add(score)
    return means


def _is_asked(row: Row, task: Task, plan: Plan) -> bool:
    """Whether a row is of a method of the plan, with its settings, scored as the task says."""
    cell = row.cell
    return (
        row.failure is None
        and cell.method in plan.methods
        and cell.settings == plan.settings_of(cell.method)
        and cell.scoring["steps"] == task.steps
        and (task.fit is None or cell.scoring["seen"][0] == task.fit)
    )


def _line(task: Task, metric: str, plan: Plan, means: Mapping[tuple[str, str], Mean]) -> Line:
    scores = paper_scores()
    ours = {m: means[m, metric] for m in plan.methods if (m, metric) in means}
    named = {m: (task.name, metric, METHODS[m].short) for m in plan.methods}
    paper = {m: scores[name] for m, name in named.items() if name in scores}
    return Line(task.name, metric, ours, paper)


def as_markdown(lines: Sequence[Line], methods: Sequence[str]) -> str:
    """A table for a README."""
    rows = [["DB/Model", "Metric", *(METHODS[m].short for m in methods)]]
    rows.append(["---"] * len(rows[0]))
    for line in lines:
        marks = _marks({m: mean.mean for m, mean in line.ours.items()})
        ours = [_marked(line.ours.get(m), marks.get(m, 0), "**{}**") for m in methods]
        rows.append([line.task, line.metric, *ours])
        if line.paper:
            theirs = [f"{line.paper[m]:.2f}" if m in line.paper else "" for m in methods]
            rows.append([line.task, f"{line.metric}, paper", *theirs])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def as_latex(lines: Sequence[Line], methods: Sequence[str]) -> str:
    """A tabular for a paper."""
    titles = ["DB/Model", "Metric", *(_latex_name(METHODS[m].short) for m in methods)]
    rows = [" & ".join(f"\\textbf{{{title}}}" for title in titles) + r" \\ \hline"]
    for line in lines:
        marks = _marks({m: mean.mean for m, mean in line.ours.items()})
        cells = [_marked(line.ours.get(m), marks.get(m, 0), "\\textbf{{{}}}") for m in methods]
        cells = [
            cell.replace("±", r"$\pm$").replace("[", "{[}").replace("]", "{]}") for cell in cells
        ]
        rows.append(" & ".join([line.task, line.metric, *cells]) + r" \\")
        if line.paper:
            theirs = [f"{line.paper[m]:.2f}" if m in line.paper else "" for m in methods]
            rows.append(" & ".join(["", "paper", *theirs]) + r" \\")
    columns = "c" * (len(methods) + 2)
    body = "\n".join(rows)
    return f"\\begin{{tabular}}{{{columns}}}\n{body}\n\\end{{tabular}}\n"


def as_csv(lines: Sequence[Line], methods: Sequence[str]) -> str:
    """A line for each task, metric and method."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["task", "metric", "method", "mean", "standard_error", "count", "paper"])
    for line in lines:
        for method in methods:
            mean = line.ours.get(method)
            ours = (
                ["", "", 0]
                if mean is None
                else [f"{mean.mean:.6f}", f"{mean.error:.6f}", mean.count]
            )
            writer.writerow([line.task, line.metric, method, *ours, line.paper.get(method, "")])
    return out.getvalue()


FORMATS: Mapping[str, Callable[[Sequence[Line], Sequence[str]], str]] = {
    "markdown": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
}


def table(plan: Plan, store: Path, kind: str = "markdown") -> str:
    """A plan's table as text."""
    known("format", kind, FORMATS)
    return FORMATS[kind](table_lines(plan, store), plan.methods)


def _marks(scores: Mapping[str, float]) -> dict[str, int]:
    """2 for the best as it is printed, 1 for the second; those that are equal share."""
    printed = {method: round(score, 3) for method, score in scores.items()}
    order = sorted(set(printed.values()), reverse=True)[:2]
    return {m: 2 - order.index(score) for m, score in printed.items() if score in order}


def _marked(mean: Mean | None, mark: int, bold: str) -> str:
    if mean is None:
        return ""
    text = f"{mean.mean:.3f} ± {mean.error:.3f}"
    return bold.format(f"[{text}]" if mark == 2 else text) if mark else text


def _latex_name(short: str) -> str:
    for sign, tex in (("^All", "$^{All}$"), ("⁺⁻", "$^{+,-}$"), ("⁺", "$^+$")):
        short = short.replace(sign, tex)
    return short
