"""The readme that goes into the package: README.md with links that work everywhere.

In the repository README.md has relative links, so that they can be followed on a branch and in a
checkout. A package index shows the readme without the repository, so there they become addresses at
the release's tag, below the address that `[project.urls]` calls Source.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?P<image>!?)(?P<text>\[[^\]]*\])\((?P<path>[^)\s:#][^)\s:]*)\)")
"""A link or an image whose address has no scheme and is no heading of the same page."""


def with_absolute_links(text: str, source: str, tag: str) -> str:
    """Return Markdown in which links to files of the repository are addresses at a tag."""

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link["image"] else "blob"
        return f"{link['image']}{link['text']}({source}/{kind}/{tag}/{link['path']})"

    return LINK.sub(absolute, text)


class ReadmeHook(MetadataHookInterface):
    """Sets `readme` while the metadata of a package is made."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        tag = f"v{metadata['version']}"
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_absolute_links(text, metadata["urls"]["Source"], tag),
        }
