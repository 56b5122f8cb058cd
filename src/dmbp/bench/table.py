"""A plan's table in the paper's layout, beside the paper's figures: Markdown, LaTeX, CSV."""

import csv
import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from dmbp.bench.layout import Layout, Text, methods_across, notes, tasks_across
from dmbp.bench.lines import Line, average_line, table_lines
from dmbp.bench.paper import TABLES
from dmbp.bench.plan import Plan
from dmbp.names import known


def table(plan: Plan, store: Path, kind: str = "markdown") -> str:
    """A plan's table as text."""
    known("format", kind, FORMATS)
    return FORMATS[kind](table_lines(plan, store), plan)


def as_markdown(lines: list[Line], plan: Plan) -> str:
    """A table for a README, the notes below."""
    layout = _layout(lines, plan)
    titles = [_markdown(Text(title)) for title in layout.titles]
    texts = [titles, ["---"] * len(titles)]
    texts += [[_markdown(text) for text in row] for row in layout.rows]
    body = "\n".join(f"| {' | '.join(row)} |" for row in texts)
    return body + "\n\n" + "\n".join(f"- {note}" for note in _below(lines, plan)) + "\n"


def as_latex(lines: list[Line], plan: Plan) -> str:
    """A tabular for a paper, the notes below."""
    layout = _layout(lines, plan)
    rows = [" & ".join(_latex(Text(title, bold=True)) for title in layout.titles) + r" \\ \hline"]
    rows += [" & ".join(map(_latex, row)) + r" \\" for row in layout.rows]
    body = "\n".join(rows)
    said = _below(lines, plan)
    below = "".join(f"\n\n{{\\footnotesize {_latex(Text(note))}}}" for note in said)
    columns = "c" * len(layout.titles)
    return f"\\begin{{tabular}}{{{columns}}}\n{body}\n\\end{{tabular}}{below}\n"


def as_csv(lines: list[Line], plan: Plan) -> str:
    """A line for each task, metric and method."""
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

FORMATS: Mapping[str, Callable[[list[Line], Plan], str]] = {
    "markdown": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
}


def _layout(lines: list[Line], plan: Plan) -> Layout:
    labels = [variant.label for variant in plan.variants]
    if TABLES[plan.paper].tasks_across:
        return tasks_across(lines, labels)
    average = average_line(lines, plan)
    return methods_across(lines if average is None else [*lines, average], labels)


def _below(lines: list[Line], plan: Plan) -> list[str]:
    """What is said below a table: what its lines are over, and who has no average."""
    average = None if TABLES[plan.paper].tasks_across else average_line(lines, plan)
    has = {variant.label for variant in plan.variants} if average is None else average.ours
    labels = [variant.label for variant in plan.variants if variant.label not in has]
    yet = "" if all(line.is_whole for line in lines) else " yet"
    why = f"Avg, {', '.join(labels)}: not every line has a score{yet}"
    return [*notes(lines), why] if labels else notes(lines)


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
