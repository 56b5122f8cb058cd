"""Pictures of the gallery: every new matplotlib figure among an example's variables."""

from typing import Any

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst

WIDTH = 1400
"""Pixels, at most."""


def figure_scraper(_block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Save the figures that a block made, and return the text that shows them."""
    names = block_vars["example_globals"]
    seen: list[Figure] = names.setdefault("__figures__", [])
    paths: list[str] = []
    for value in list(names.values()):
        if isinstance(value, Figure) and not any(value is other for other in seen):
            seen.append(value)
            path = next(block_vars["image_path_iterator"])
            value.savefig(path, dpi=min(110, WIDTH / value.get_size_inches()[0]))
            paths.append(path)
    return figure_rst(paths, gallery_conf["src_dir"])
