"""Mean ranks of a plan's methods, and which differences of ranks are significant.

For each metric, every question ranks the methods, from 1 for the best; equal scores share their
mean rank. Friedman's test says whether any method is better than another, and two methods differ at
the level 0.05 if their mean ranks are further apart than Nemenyi's critical difference,

    CD = q · sqrt(k (k + 1) / (6 N))            k methods, N questions

where q is the studentised range of k values with infinitely many degrees of freedom, divided by √2.

    >>> round(critical_difference(methods=10, blocks=30), 3)  # Demšar's table: q = 3.164
    2.473

The overall ranking ranks the methods by their means, once for each task and metric, over the
questions that all of them have been scored on. Metrics of one task share their maps, and questions
of one photo their pixels, so that both tests are optimistic.

Friedman, "The Use of Ranks to Avoid the Assumption of Normality", JASA 1937; Nemenyi,
"Distribution-free Multiple Comparisons", 1963; Demšar, "Statistical Comparisons of Classifiers over
Multiple Data Sets", JMLR 2006.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from dmbp.bench.plan import Plan
from dmbp.bench.report.lines import TableLine, table_lines
from dmbp.bench.store import Store
from dmbp.bench.units import SkippedTasks, results
from dmbp.errors import InputError, require_known
from dmbp.metric_table import METRICS, badness

LEVEL = 0.05
"""The probability that any two methods differ by more than the critical difference by chance."""

OVERALL = "overall"


@dataclass(frozen=True)
class Incomplete:
    """A task that is not part of a ranking, or some of its metrics if others are.

    Attributes:
        task: The task.
        metrics: The metrics; none for the whole task.
        missing: The ranked methods that all of these lack.
    """

    task: str
    metrics: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Ranking:
    """Mean ranks by label, from 1 for the best.

    Attributes:
        metric: The metric, or "overall".
        blocks: How many questions, or lines of the table, ranked the methods.
        ranks: The mean rank of each method.
        probability: Friedman's: that ranks are as unequal if all methods are equally good.
        critical: The smallest difference of mean ranks that is significant.
        left_out: The methods that have no score in more than half of the blocks.
        incomplete: The tasks, or some of their metrics, in which no block has all other methods.
    """

    metric: str
    blocks: int
    ranks: Mapping[str, float]
    probability: float
    critical: float
    left_out: tuple[str, ...] = ()
    incomplete: tuple["Incomplete", ...] = ()

    @property
    def order(self) -> list[str]:
        """The labels from the best to the worst."""
        return sorted(self.ranks, key=lambda label: self.ranks[label])


def rank_methods(
    metric: str, blocks: Sequence[Mapping[str, float]], labels: Sequence[str]
) -> Ranking:
    """Rank methods by how bad each is in every block, which are complete or left out.

    Args:
        metric: What the ranking is called.
        blocks: For each question, numbers by label that increase as a method gets worse.
        labels: All methods; those with a number in less than half of the blocks are left out.
            Blocks that lack a number of any other method do not count.

    Returns:
        The ranking.
    """
    ranked, whole = _comparable(blocks, labels)
    absent = tuple(label for label in labels if label not in ranked)
    if len(ranked) < 2 or not whole:
        return Ranking(metric, len(whole), {}, 1.0, math.inf, absent)
    values = torch.tensor(whole, dtype=torch.float64)
    below = (values[:, None, :] < values[:, :, None]).sum(2)
    equal = (values[:, None, :] == values[:, :, None]).sum(2)
    ranks = below + (equal + 1) / 2
    means = ranks.mean(0)
    return Ranking(
        metric,
        len(whole),
        dict(zip(ranked, means.tolist(), strict=True)),
        friedman_probability(ranks),
        critical_difference(len(ranked), len(whole)),
        absent,
    )


def _comparable(
    blocks: Sequence[Mapping[str, float]], labels: Sequence[str]
) -> tuple[list[str], list[list[float]]]:
    """Return the labels with a number in half of the blocks, and the blocks with all of them."""
    counts = {label: sum(label in block for block in blocks) for label in labels}
    kept = [label for label in labels if counts[label] and 2 * counts[label] >= len(blocks)]
    return kept, [[block[label] for label in kept] for block in blocks if set(kept) <= set(block)]


def friedman_probability(ranks: torch.Tensor) -> float:
    """Return the probability of ranks (blocks, methods) as unequal as these, corrected for ties."""
    blocks, methods = ranks.shape
    spread = (ranks - (methods + 1) / 2).square().sum() / (methods - 1)
    if not spread > 0:
        return 1.0
    statistic = (ranks.sum(0) - blocks * (methods + 1) / 2).square().sum() / spread
    half = torch.tensor((methods - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half, statistic / 2))


def critical_difference(methods: int, blocks: int, *, level: float = LEVEL) -> float:
    """Return Nemenyi's critical difference of mean ranks."""
    return (
        studentised_range(methods, level)
        / math.sqrt(2)
        * math.sqrt(methods * (methods + 1) / (6 * blocks))
    )


def studentised_range(values: int, level: float = LEVEL) -> float:
    """Return what the range of so many standard normal numbers exceeds with probability `level`."""
    z = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)

    def exceeds(width: float) -> float:
        inside = torch.special.ndtr(z) - torch.special.ndtr(z - width)
        return 1 - float(torch.trapezoid(values * density * inside ** (values - 1), z))

    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if exceeds(middle) > level else (low, middle)
    return (low + high) / 2


def rankings(plan: Plan, path: Path) -> list[Ranking]:
    """Return the overall ranking of a plan's methods, then that by each metric.

    Args:
        plan: The plan.
        path: The file of results.

    Raises:
        InputError: If there are fewer than two methods with scores.
        DMBPError: If the store cannot be read, or no task can run.
    """
    used = {variant.label for task in plan.tasks for variant in plan.variants_of(task)}
    labels = [variant.label for variant in plan.variants if variant.label in used]
    blocks = _blocks(plan, path)
    by_metric: dict[str, dict[Line, list[dict[str, float]]]] = {}
    for line, found in blocks.items():
        by_metric.setdefault(line[1], {})[line] = found
    overall = _rank_lines(
        OVERALL, {line: [_means(found, labels)] for line, found in blocks.items()}, labels
    )
    if not overall.ranks:
        raise InputError(
            f"{path} has no question with a score of every method of this plan: `dmbp bench run` "
            "computes what is missing"
        )
    ranked = [_rank_lines(metric, lines, labels) for metric, lines in by_metric.items()]
    return [overall, *(ranking for ranking in ranked if ranking.ranks)]


Line = tuple[str, str]
"""A task and a metric."""


def _rank_lines(
    metric: str, lines: Mapping[Line, Sequence[Mapping[str, float]]], labels: Sequence[str]
) -> Ranking:
    """Rank methods by the blocks of some lines, and note which lines have no whole block."""
    ranking = rank_methods(metric, [block for of in lines.values() for block in of], labels)
    whole = Counter(task for task, _ in lines)
    found: dict[str, list[str]] = {}
    scored: dict[str, set[str]] = {}
    for (task, name), blocks in lines.items():
        if not any(ranking.ranks.keys() <= block.keys() for block in blocks):
            found.setdefault(task, []).append(name)
            scored.setdefault(task, set()).update(label for block in blocks for label in block)
    incomplete = [
        Incomplete(
            task,
            () if len(names) == whole[task] else tuple(names),
            tuple(label for label in labels if label in ranking.ranks.keys() - scored[task]),
        )
        for task, names in found.items()
    ]
    return replace(ranking, incomplete=tuple(incomplete))


def _blocks(plan: Plan, path: Path) -> dict[Line, list[dict[str, float]]]:
    """Return how bad each method is on every question, by task and metric."""
    found: dict[Line, dict[tuple[str, int], dict[str, float]]] = {}
    with closing(Store(path, read_only=True)) as store:
        skipped = SkippedTasks(plan)
        for task in plan.tasks:
            with skipped.skip_on_error(task):
                for target, variant, row in results(task, plan, store):
                    for metric in task.metrics:
                        score = None if row is None else row.scores.get(metric)
                        bad = None if score is None else badness(metric, score)
                        if bad is not None:
                            of = found.setdefault((task.name, metric), {})
                            question = (target.sample.name, target.index)
                            of.setdefault(question, {})[variant.label] = bad
    return {line: list(questions.values()) for line, questions in found.items()}


def _means(blocks: Sequence[Mapping[str, float]], labels: Sequence[str]) -> dict[str, float]:
    """Return the methods' means over the questions that have all of them."""
    kept, whole = _comparable(blocks, labels)
    if not whole:
        return {}
    columns = zip(*whole, strict=True)
    return {label: sum(c) / len(c) for label, c in zip(kept, columns, strict=True)}


def leaderboard(plan: Plan, store: Path, kind: str = "markdown") -> str:
    """Return a plan's ranks and means as text.

    Args:
        plan: The plan.
        store: The file of results.
        kind: "markdown" or "json".

    Raises:
        DMBPError: If the format is unknown, the store cannot be read, or no task can run.
    """
    require_known("format", kind, FORMATS)
    return FORMATS[kind](rankings(plan, store), table_lines(plan, store), plan)


def as_markdown(ranked: Sequence[Ranking], lines: Sequence[TableLine], plan: Plan) -> str:
    """Return a table of mean ranks, and one of means for each task; methods are rows."""
    overall = ranked[0]
    labels = [*overall.order, *overall.left_out]
    titles = ["mean rank", *(ranking.metric for ranking in ranked)]
    rows = [[f"**{label}**", *(_rank(ranking, label) for ranking in ranked)] for label in labels]
    text = [*_table(titles, rows), ""]
    text += [_summary(ranking) for ranking in ranked]
    text += _incomplete(ranked, plan)
    for task in plan.tasks:
        own = [line for line in lines if line.task == task.name and line.questions]
        if not own:
            continue
        taken = {variant.label for variant in plan.variants_of(task)}
        titles = [task.name, *(f"{line.metric}{ARROWS[_better(line.metric)]}" for line in own)]
        rows = [
            [f"**{label}**", *(_mean(line, label) for line in own)]
            for label in labels
            if label in taken
        ]
        text += ["", *_table(titles, rows), "", _coverage(own)]
    return "\n".join(text) + "\n"


ARROWS = {"high": " ↑", "low": " ↓", "zero": " → 0", None: ""}
"""How a column's title says which scores are better."""


def _better(metric: str) -> str | None:
    return METRICS[metric].better


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    texts = [titles, ["---"] * len(titles), *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in texts]


def _rank(ranking: Ranking, label: str) -> str:
    """Return a mean rank, bold if it is not significantly worse than the best."""
    if label not in ranking.ranks:
        return ""
    rank = ranking.ranks[label]
    is_best = rank - min(ranking.ranks.values()) <= ranking.critical
    return f"**{rank:.2f}**" if is_best else f"{rank:.2f}"


def _summary(ranking: Ranking) -> str:
    what = "lines" if ranking.metric == OVERALL else "questions"
    absent = f"; without {', '.join(ranking.left_out)}" if ranking.left_out else ""
    return (
        f"- {ranking.metric}: {ranking.blocks} {what}, {len(ranking.ranks)} methods, Friedman's p "
        f"{_probability(ranking.probability)}, critical difference {ranking.critical:.2f}{absent}"
    )


def _incomplete(ranked: Sequence[Ranking], plan: Plan) -> list[str]:
    """Tell which tasks are not part of which ranks, and for want of which methods."""
    whole: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    parts: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for ranking in ranked:
        for part in ranking.incomplete:
            if part.metrics:
                parts.setdefault((ranking.metric, part.metrics), []).append(part.task)
            else:
                whole.setdefault((part.task, part.missing), []).append(ranking.metric)
    metrics = {task.name: {OVERALL, *task.metrics} for task in plan.tasks}
    present = {ranking.metric for ranking in ranked}
    lines = [
        f"- {task}: not in {'any' if {*names} == metrics[task] & present else ', '.join(names)}; "
        + (f"it lacks {', '.join(missing)}" if missing else "no question has every method")
        for (task, missing), names in whole.items()
    ]
    lines += [
        f"- {', '.join(names)} of {', '.join(tasks)}: not in {ranking}; "
        "some methods have too few scores"
        for (ranking, names), tasks in parts.items()
    ]
    if not lines:
        return []
    intro = "Not in the mean ranks, which need each method that most tasks have (see `--task`):"
    return ["", intro, "", *lines]


def _coverage(lines: Sequence[TableLine]) -> str:
    """Tell over how many questions a task's means are."""
    most = max(line.questions for line in lines)
    missing = {label: max(line.ours[label].missing for line in lines) for label in lines[0].ours}
    fewer = ", ".join(f"{label} {most - n}" for label, n in missing.items() if n)
    return f"{most} questions" + (f"; so far fewer for: {fewer}" if fewer else "")


def _probability(value: float) -> str:
    return "< 0.0001" if value < 1e-4 else f"= {value:.4f}"


def _mean(line: TableLine, label: str) -> str:
    score = line.ours[label]
    if not score.mean.count:
        return "failed" if score.failed else "–"
    error = f" ± {score.mean.error:.3f}" if score.mean.count > 1 else ""
    return f"{score.mean.mean:.3f}{error}"


def as_json(ranked: Sequence[Ranking], lines: Sequence[TableLine], plan: Plan) -> str:
    """Return ranks, means and standard errors as JSON."""
    by_label = {variant.label: variant.method for variant in plan.variants}
    tree = {
        "methods": by_label,
        "ranks": [
            {
                "metric": ranking.metric,
                "blocks": ranking.blocks,
                "probability": ranking.probability,
                "critical_difference": ranking.critical,
                "mean_ranks": dict(ranking.ranks),
                "left_out": list(ranking.left_out),
                "incomplete": [asdict(part) for part in ranking.incomplete],
            }
            for ranking in ranked
        ],
        "scores": [
            {
                "task": line.task,
                "metric": line.metric,
                "label": label,
                "mean": score.mean.mean,
                "standard_error": score.mean.error if score.mean.count > 1 else None,
                "count": score.mean.count,
                "failed": score.failed,
                "unscored": score.unscored,
            }
            for line in lines
            for label, score in line.ours.items()
            if score.mean.count
        ],
    }
    return json.dumps(tree, indent=1, ensure_ascii=False) + "\n"


FORMATS: Mapping[str, Callable[[Sequence[Ranking], Sequence[TableLine], Plan], str]] = {
    "markdown": as_markdown,
    "json": as_json,
}
