"""How the paper lays its tables out, as rows of marked texts that any format can write.

Tables 1 and 2 have a line for each task and metric and a column for each method; the best of a line
stands in brackets, the best two are bold. Table 3 has a line for each method and a column for each
task, and the best is bold. None is marked in a line whose means are not all over the same
questions. The paper's figures follow ours, below in the one and beside in the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dmbp.bench.lines import Line, Score
from dmbp.bench.marks import marks


@dataclass(frozen=True)
class Text:
    """What stands in a place of a table."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Layout:
    """Titles, and rows as long as them."""

    titles: Sequence[str]
    rows: Sequence[Sequence[Text]]


def methods_across(lines: Sequence[Line], labels: Sequence[str]) -> Layout:
    """A column for each method."""
    rows: list[list[Text]] = []
    for line in lines:
        found = marks(line.metric, line.means()) if line.is_fair else {}
        ours = [_ours(line.ours.get(label), found.get(label, 0)) for label in labels]
        rows.append([Text(line.task), Text(line.metric), *ours])
        if line.paper:
            name = f"{line.metric}, paper"
            rows.append([Text(line.task), Text(name), *(_theirs(line, label) for label in labels)])
    return Layout(["DB/Model", "Metric", *labels], rows)


def tasks_across(lines: Sequence[Line], labels: Sequence[str]) -> Layout:
    """A column for each task and metric, the paper's beside it."""
    titles = [""]
    rows = [[Text(label, bold=True)] for label in labels]
    several = len({line.metric for line in lines}) > 1
    for line in lines:
        titles.append(f"{line.task}, {line.metric}" if several else line.task)
        titles += ["paper"] if line.paper else []
        found = marks(line.metric, line.means()) if line.is_fair else {}
        for label, row in zip(labels, rows, strict=True):
            row.append(_ours(line.ours.get(label), found.get(label, 0), brackets=False))
            row += [_theirs(line, label)] if line.paper else []
    return Layout(titles, rows)


def _ours(score: Score | None, mark: int, *, brackets: bool = True) -> Text:
    if score is None or not score.mean.count:
        return Text("")
    text = f"{score.mean.mean:.3f}"
    text += f" ± {score.mean.error:.3f}" if score.mean.count > 1 else ""
    if not brackets:
        return Text(text, bold=mark == 2)
    return Text(f"[{text}]" if mark == 2 else text, bold=mark > 0)


def _theirs(line: Line, label: str) -> Text:
    return Text(f"{line.paper[label]:.2f}" if label in line.paper else "")


def notes(lines: Sequence[Line]) -> list[str]:
    """How many photos and questions each line is over, and what is not there."""
    found = [f"{line.task}, {line.metric}: {_over(line)}" for line in lines]
    return found + [note for line in lines for note in _missing(line)]


NOT_ASKED = {"cIM": "no photo shows two classes", "pointing": "no photo comes with boxes"}


def _over(line: Line) -> str:
    if not line.asked and line.metric in NOT_ASKED:
        return NOT_ASKED[line.metric]
    return f"{_counted(line.photos, 'photo')}, {_counted(line.asked, 'question')} a method"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


NOT_SCORED = {"pointing": 'not scored, which takes fit = "squeeze"'}
"""Why a metric may have no score for a photo that has all it needs."""


def _missing(line: Line) -> list[str]:
    """What a line lacks, methods that lack the same together."""
    lacking: dict[str, list[str]] = {}
    for label, score in line.ours.items():
        gone = {"failed": score.failed, "not computed yet": score.missing}
        gone[NOT_SCORED.get(line.metric, "not scored")] = score.unscored
        said = ", ".join(f"{count} {what}" for what, count in gone.items() if count)
        if said:
            lacking.setdefault(said, []).append(label)
    return [
        f"{line.task}, {line.metric}, {', '.join(labels)}: {'each ' * (len(labels) > 1)}{said}"
        for said, labels in lacking.items()
    ]
