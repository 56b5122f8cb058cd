"""Pages that are made from the code: they have a mark, `<!-- generated -->`, for that text."""

import inspect
import re
from typing import Any

import command_line
import plan_format
from sphinx.application import Sphinx

import dmbp

MARK = "<!-- generated -->"


def methods_table() -> str:
    """Every method with its title and class."""
    lines = ["| name | what it is called | in tables |", "| --- | --- | --- |"]
    for name, row in dmbp.methods().items():
        lines.append(f"| `{name}` | {row.title} | {row.short} |")
    return "\n".join(lines)


def errors_tree() -> str:
    """The tree of exceptions, as the module's docstring draws it."""
    tree = inspect.getdoc(dmbp.errors) or ""
    return "```text\n" + "\n".join(re.findall(r"^ {4}(.*)$", tree, re.MULTILINE)) + "\n```"


PAGES = {
    "reference/command-line": command_line.page,
    "reference/plan": plan_format.page,
    "reference/errors": errors_tree,
}


def fill(_app: Sphinx, name: str, source: list[str]) -> None:
    if name in PAGES:
        if MARK not in source[0]:
            raise ValueError(f"{name} lacks the mark {MARK}")
        source[0] = source[0].replace(MARK, PAGES[name]())


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
