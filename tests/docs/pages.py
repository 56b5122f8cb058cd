"""The pages of the documentation, and the blocks of code in them.

A page's Python runs from top to bottom in one namespace, in a folder that has photos. Before a
block that cannot run here stands a comment with the reason:

    <!-- not run: downloads 600 MB of weights -->
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.conftest import ROOT

DOCS = ROOT / "docs"

FENCE = re.compile(r"^( *)(`{3,})([^\n`]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: ([^\n]+?) -->\n\s*\Z")


@dataclass(frozen=True)
class Block:
    """Code on a page."""

    language: str
    code: str
    line: int
    not_run: str | None

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block that call dmbp, with continued lines joined."""
        if self.language not in ("", "shell"):
            return []
        lines = re.sub(r"\\\n\s*", " ", self.code).splitlines()
        found = (line.strip().removeprefix("$ ") for line in lines)
        return [line for line in found if re.match(r"dmbp\s", line)]


@dataclass(frozen=True)
class Page:
    """A page of the documentation."""

    path: Path

    @property
    def name(self) -> str:
        """Its path in the repository."""
        inside = self.path.is_relative_to(ROOT)
        return (self.path.relative_to(ROOT) if inside else self.path).as_posix()

    @cached_property
    def text(self) -> str:
        """What it says, with comments."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def blocks(self) -> list[Block]:
        """Its code, from top to bottom."""
        found: list[Block] = []
        for match in FENCE.finditer(self.text):
            indent, _, language, code = match.groups()
            before = self.text[: match.start()]
            reason = NOT_RUN.search(before)
            code = "".join(line.removeprefix(indent) for line in code.splitlines(keepends=True))
            line = before.count("\n") + 2
            found.append(Block(language.strip(), code, line, reason[1] if reason else None))
        return found

    @property
    def python(self) -> list[Block]:
        """Its blocks of Python."""
        return [block for block in self.blocks if block.language == "python"]

    @property
    def commands(self) -> list[str]:
        """Its lines that call dmbp, also those that cannot run."""
        return [command for block in self.blocks for command in block.commands]


PAGES = [
    Page(path)
    for path in sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
    if "auto_gallery" not in path.parts
]
