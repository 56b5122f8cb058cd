"""Formats a plan's table in the paper's layout, with the paper's figures: Markdown, LaTeX or CSV.

Tables 1 and 2 have a line for each task and metric and a column for each method; the best score of
a line is in brackets, and the best two are bold. Table 3 has a line for each method and a column
for each task, and the best score is bold. Nothing is marked if the means to be compared are not
over the same number of questions. The paper's figures are below ours in the first layout and to the
right of ours in the second.
"""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dmbp.bench.paper import TABLES
from dmbp.bench.plan import Plan
from dmbp.bench.report.lines import ScoreSummary, TableLine, average_line, rank_best, table_lines
from dmbp.errors import require_known
from dmbp.metric_table import METRICS, WHY_NO_QUESTIONS


@dataclass(frozen=True)
class Text:
    """The text of one entry of a table."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class TableLayout:
    """A table independent of its format: titles, and rows of the same length."""

    titles: Sequence[str]
    rows: Sequence[Sequence[Text]]


def methods_across(lines: Sequence[TableLine], labels: Sequence[str]) -> TableLayout:
    """Lay lines out with a column for each method."""
    rows: list[list[Text]] = []
    for line in lines:
        ranks = rank_best(line.metric, line.means()) if line.is_fair else {}
        ours = [_our_score(line.ours.get(label), ranks.get(label, 0)) for label in labels]
        rows.append([Text(line.task), Text(line.metric), *ours])
        if line.paper:
            name = f"{line.metric}, paper"
            rows.append(
                [Text(line.task), Text(name), *(_paper_score(line, label) for label in labels)]
            )
    return TableLayout(["DB/Model", "Metric", *labels], rows)


def tasks_across(lines: Sequence[TableLine], labels: Sequence[str]) -> TableLayout:
    """Lay lines out with a column for each task and metric, and one for the paper's figures."""
    titles = [""]
    rows = [[Text(label, bold=True)] for label in labels]
    has_many_metrics = len({line.metric for line in lines}) > 1
    for line in lines:
        titles.append(f"{line.task}, {line.metric}" if has_many_metrics else line.task)
        titles += ["paper"] if line.paper else []
        ranks = rank_best(line.metric, line.means()) if line.is_fair else {}
        for label, row in zip(labels, rows, strict=True):
            row.append(_our_score(line.ours.get(label), ranks.get(label, 0), brackets=False))
            row += [_paper_score(line, label)] if line.paper else []
    return TableLayout(titles, rows)


def _our_score(score: ScoreSummary | None, rank: int, *, brackets: bool = True) -> Text:
    if score is None or not score.mean.count:
        return Text("")
    text = f"{score.mean.mean:.3f}"
    text += f" ± {score.mean.error:.3f}" if score.mean.count > 1 else ""
    if not brackets:
        return Text(text, bold=rank == 2)
    return Text(f"[{text}]" if rank == 2 else text, bold=rank > 0)


def _paper_score(line: TableLine, label: str) -> Text:
    return Text(f"{line.paper[label]:.2f}" if label in line.paper else "")


def notes(lines: Sequence[TableLine]) -> list[str]:
    """Return notes on how many photos and questions each line has, and on what is missing."""
    sizes = [f"{line.task}, {line.metric}: {_size(line)}" for line in lines]
    return sizes + [note for line in lines for note in _missing(line)]


def _size(line: TableLine) -> str:
    needs = METRICS[line.metric].needs if line.metric in METRICS else None
    if not line.questions and needs is not None:
        return WHY_NO_QUESTIONS[needs]
    return f"{_counted(line.photos, 'photo')}, {_counted(line.questions, 'question')} per method"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _missing(line: TableLine) -> list[str]:
    """Return notes on the scores that a line lacks; methods that lack the same share a note."""
    optional = METRICS[line.metric].optional if line.metric in METRICS else None
    not_scored = "not scored" if optional is None else f"not scored, {optional}"
    lacking: dict[str, list[str]] = {}
    for label, score in line.ours.items():
        counts = {"failed": score.failed, "not computed yet": score.missing}
        counts[not_scored] = score.unscored
        note = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        if note:
            lacking.setdefault(note, []).append(label)
    return [
        f"{line.task}, {line.metric}, {', '.join(labels)}: {'each ' * (len(labels) > 1)}{note}"
        for note, labels in lacking.items()
    ]


def table(plan: Plan, store: Path, kind: str = "markdown") -> str:
    """Return a plan's table as text.

    Args:
        plan: The plan.
        store: The file of results.
        kind: "markdown", "latex" or "csv".

    Raises:
        DMBPError: If the format is unknown, the store cannot be read, or no task can run.
    """
    require_known("format", kind, FORMATS)
    return FORMATS[kind](table_lines(plan, store), plan)


def as_markdown(lines: list[TableLine], plan: Plan) -> str:
    """Return a Markdown table with notes below it."""
    layout = _layout(lines, plan)
    titles = [_markdown(Text(title)) for title in layout.titles]
    texts = [titles, ["---"] * len(titles)]
    texts += [[_markdown(text) for text in row] for row in layout.rows]
    body = "\n".join(f"| {' | '.join(row)} |" for row in texts)
    return body + "\n\n" + "\n".join(f"- {note}" for note in _notes_below(lines, plan)) + "\n"


def as_latex(lines: list[TableLine], plan: Plan) -> str:
    """Return a LaTeX tabular with notes below it."""
    layout = _layout(lines, plan)
    rows = [" & ".join(_latex(Text(title, bold=True)) for title in layout.titles) + r" \\ \hline"]
    rows += [" & ".join(map(_latex, row)) + r" \\" for row in layout.rows]
    body = "\n".join(rows)
    below = "".join(
        f"\n\n{{\\footnotesize {_latex(Text(note))}}}" for note in _notes_below(lines, plan)
    )
    columns = "c" * len(layout.titles)
    return f"\\begin{{tabular}}{{{columns}}}\n{body}\n\\end{{tabular}}{below}\n"


def as_csv(lines: list[TableLine], plan: Plan) -> str:
    """Return CSV with a line for each task, metric and method."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for line in lines:
        for variant in plan.variants:
            score = line.ours[variant.label]
            mean = score.mean
            ours = [f"{mean.mean:.6f}" if mean.count else ""]
            ours.append(f"{mean.error:.6f}" if mean.count > 1 else "")
            counts = [mean.count, score.failed, score.missing, line.photos]
            names = [line.task, line.metric, variant.label, variant.method]
            writer.writerow([*names, *ours, *counts, line.paper.get(variant.label, "")])
    return out.getvalue()


COLUMNS = (
    *("task", "metric", "label", "method", "mean", "standard_error"),
    *("count", "failed", "missing", "photos", "paper"),
)

FORMATS: Mapping[str, Callable[[list[TableLine], Plan], str]] = {
    "markdown": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
}


def _layout(lines: list[TableLine], plan: Plan) -> TableLayout:
    labels = [variant.label for variant in plan.variants]
    if TABLES[plan.paper].tasks_across:
        return tasks_across(lines, labels)
    average = average_line(lines, plan)
    return methods_across(lines if average is None else [*lines, average], labels)


def _notes_below(lines: list[TableLine], plan: Plan) -> list[str]:
    """Return the notes below a table, also on methods that have no average."""
    average = None if TABLES[plan.paper].tasks_across else average_line(lines, plan)
    averaged = {variant.label for variant in plan.variants} if average is None else average.ours
    labels = [variant.label for variant in plan.variants if variant.label not in averaged]
    yet = "" if all(line.is_complete for line in lines) else " yet"
    note = f"Avg, {', '.join(labels)}: not every line has a score{yet}"
    return [*notes(lines), note] if labels else notes(lines)


def _markdown(text: Text) -> str:
    written = text.text.replace("|", r"\|")
    return f"**{written}**" if text.bold and written else written


_LATEX: Mapping[str, str] = {
    **{sign: f"\\{sign}" for sign in "&%#_${}"},
    "\\": r"\textbackslash{}",
    "^All": "$^{All}$",
    "^": r"\^{}",
    "~": r"\~{}",
    "⁺⁻": "$^{+,-}$",
    "⁺": "$^+$",
    "±": r"$\pm$",
    "[": "{[}",
    "]": "{]}",
}
_SIGNS = re.compile("|".join(re.escape(sign) for sign in sorted(_LATEX, key=len, reverse=True)))


def _latex(text: Text) -> str:
    written = _SIGNS.sub(lambda sign: _LATEX[sign[0]], text.text)
    return f"\\textbf{{{written}}}" if text.bold and written else written
