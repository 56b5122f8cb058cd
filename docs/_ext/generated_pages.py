"""Pages that are made from the code: they have a mark, `<!-- generated -->`, for that text."""

import inspect
import re
from pathlib import Path
from typing import Any

import command_line
import plan_format
from sphinx.application import Sphinx

from dmbp import errors

MARK = "<!-- generated -->"


def errors_tree() -> str:
    """The tree of exceptions, as the module's docstring draws it."""
    tree = inspect.getdoc(errors) or ""
    return "```text\n" + "\n".join(re.findall(r"^ {4}(.*)$", tree, re.MULTILINE)) + "\n```"


def security() -> str:
    """The file in the repository, with links that lead to pages; others are shown as paths."""
    text = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
    text = text.replace("(docs/reference/", "(").replace("(docs/", "(../")
    return re.sub(r"\[([^\]]+)\]\(((?:src|tests|benchmarks|examples)[^)]*)\)", r"\1 (`\2`)", text)


PAGES = {
    "reference/security": security,
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
