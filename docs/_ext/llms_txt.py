"""`llms.txt`: what each page is about, for programs that read; and the size of the site."""

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

SECTIONS = {
    "": "Start",
    "how-to": "How-to guides",
    "understand": "Understand",
    "reference": "Reference",
    "auto_gallery": "Gallery",
    "benchmarks": "Benchmarks",
}
SUMMARY = (
    "dmbp explains what a PyTorch network saw in a photo, volume, signal or table: which parts "
    "speak for a class (red) and which against it (blue), tested by asking the network again "
    "without them."
)
LONGEST = 160
"""Characters of a page's description."""


def described(app: Sphinx, name: str) -> str:
    """A page's line: its title, address and first sentence."""
    tree = app.env.get_doctree(name)
    words = next(
        (
            node.astext()
            for node in tree.findall(nodes.paragraph)
            if not isinstance(node.parent, nodes.entry | nodes.list_item) and node.astext().strip()
        ),
        "",
    )
    sentence = " ".join(words.split())
    if len(sentence) > LONGEST:
        sentence = sentence[:LONGEST].rpartition(" ")[0] + " …"
    url = app.config.html_baseurl + app.builder.get_target_uri(name)
    return f"- [{app.env.titles[name].astext()}]({url}): {sentence}"


def write(app: Sphinx, error: Exception | None) -> None:
    """Write llms.txt, and print where the site is."""
    if error or app.builder.name != "html":
        return
    pages = sorted(app.env.found_docs)
    lines = ["# dmbp", "", f"> {SUMMARY}", ""]
    for folder, title in SECTIONS.items():
        own = [k for k in pages if (k.partition("/")[0] if "/" in k else "") == folder]
        lines += [f"## {title}", "", *(described(app, k) for k in own if k != "index"), ""]
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines), encoding="utf-8")
    built = len(list(Path(app.outdir).rglob("*.html")))
    print(f"{built} pages, {len(pages)} of them written: {Path(app.outdir) / 'index.html'}")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
