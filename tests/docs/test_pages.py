"""What pages say about the code is true: links, names, messages, tables, versions."""

import ast
import importlib
import pkgutil
import re
import sys
from pathlib import Path

import pytest

import dmbp
from dmbp.bench.plan import Task
from dmbp.metric_table import METRICS
from tests.conftest import ROOT
from tests.docs.pages import DOCS, PAGES, Page

CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
"""Code, in which brackets are calls. A link whose text is code keeps its brackets."""

BUILT = "auto_gallery/"
"""What is there only once the site is built; links to it are checked then."""


def text_of(page: str) -> str:
    """A page of the documentation."""
    return (DOCS / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Page) -> None:
    """Also for those who read a page in the repository and not on the site."""
    for link in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.text)):
        file, _, heading = link.partition("#")
        if link.startswith("http") or BUILT in file:
            continue
        target = page.path.parent / file if file else page.path
        assert target.exists(), link
        if heading and not file.endswith("security.md"):  # includes the file above docs/
            text = re.sub(r"```.*?```", "", target.read_text(), flags=re.DOTALL)
            headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
            assert heading in anchors or "<!-- generated -->" in text, link


def test_commands_in_the_documents_exist() -> None:
    """Every `python -m benchmarks.NAME` and `python FOLDER/NAME.py` that a page names."""
    text = "\n".join(page.text for page in PAGES)
    benchmarks = set(re.findall(r"-m\s+benchmarks\.(\w+)", text))
    assert benchmarks
    for name in benchmarks:
        module, folder = f"benchmarks/{name}.py", f"benchmarks/{name}/__main__.py"
        assert (ROOT / module).exists() or (ROOT / folder).exists(), name
    scripts = set(re.findall(r"(?:scripts|docs/figures)/\w+\.py", text))
    assert "docs/figures/idea.py" in scripts
    assert {path for path in scripts if not (ROOT / path).exists()} == set()


def test_every_picture_is_shown_and_has_its_command() -> None:
    named = (DOCS / "figures/__init__.py").read_text()
    shown = "\n".join(page.text for page in PAGES)
    for picture in sorted((DOCS / "images").iterdir()):
        assert f"images/{picture.name}" in named, picture.name
        assert f"images/{picture.name}" in shown, picture.name
    for script in (DOCS / "figures").glob("[a-z]*.py"):
        assert f"python docs/figures/{script.name}" in script.read_text()


def test_every_page_is_listed() -> None:
    """The site's menus; Sphinx says the same, as the strict build does."""
    listed = {DOCS / "index.md"}
    for index in DOCS.rglob("*.md"):
        for entries in re.findall(r"```\{toctree\}\n(.*?)```", index.read_text(), re.DOTALL):
            names = [line for line in entries.splitlines() if line and not line.startswith(":")]
            for name in names:
                listed |= {index.parent / f"{name}.md", index.parent / f"{name}.rst"}
    pages = [p for k in ("*.md", "reference/api/*.rst") for p in DOCS.rglob(k)]
    pages = [page for page in pages if "auto_gallery" not in page.parts]
    assert sorted(set(pages) - listed) == []


def test_benchmarks_say_their_version() -> None:
    for page in (DOCS / "benchmarks").glob("*.md"):
        assert re.search(r"[Vv]ersion \d+\.\d+\.\d+", page.read_text()), page.name


def test_every_public_package_has_a_page() -> None:
    """All folders of the package with an `__all__`, and the errors."""
    source = ast.parse((DOCS / "_ext/api_pages.py").read_text())
    (documented,) = (
        ast.literal_eval(node.value)
        for node in source.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "PACKAGES"
    )
    folders = [f"dmbp.{found.name}" for found in pkgutil.iter_modules(dmbp.__path__) if found.ispkg]
    public = [name for name in folders if hasattr(importlib.import_module(name), "__all__")]
    assert sorted(documented) == sorted(["dmbp", "dmbp.errors", *public])
    for name in documented:
        page = DOCS / f"reference/api/{name}.rst"
        assert f".. public-names:: {name}\n" in page.read_text()


def test_every_method_and_metric_is_described() -> None:
    methods, plan = text_of("reference/methods.md"), text_of("reference/plan.md")
    for name in dmbp.methods():
        assert f"`{name}`" in methods, name
    for name in METRICS:
        base = re.sub(r" (zero|mean)$", "", name)
        assert f"`{base}`" in plan or f"`{name}`" in plan, name


def test_every_method_is_in_the_table_of_tests() -> None:
    """And the tests that it names exist."""
    page = text_of("reference/methods.md").split("## What each method is tested against")[1]
    rows = re.findall(
        r"^\| (`[^|]+) \| [^|]+ \| `([\w/]+\.py)::(\w+)` \| \S[^|]* \|$", page, re.MULTILINE
    )
    named = {name for methods, _, _ in rows for name in re.findall(r"`(\w+)`", methods)}
    assert named == set(dmbp.methods())
    for _, file, test in rows:
        folder = "tests" if "/" in file else "tests/attribution"
        assert f"\ndef {test}(" in (ROOT / folder / file).read_text(), test


@pytest.fixture
def generators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of the site that make pages can be imported."""
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    for name in ("command_line", "plan_format"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("generators")
def test_the_page_of_the_command_line_has_every_option() -> None:
    import command_line  # pyright: ignore

    page = command_line.page()
    for name, command in command_line.commands():
        assert f"\n## {name}\n" in f"\n{page}", name
        for parameter in command.params:
            if parameter.param_type_name == "option" and parameter.name != "help":
                assert parameter.opts[0] in page, (name, parameter.name)
    assert "`--fit crop|squeeze|" in page


@pytest.mark.usefixtures("generators")
def test_the_page_of_plans_has_every_key() -> None:
    import plan_format  # pyright: ignore

    page = plan_format.page()
    for name in Task.__dataclass_fields__:
        row = re.search(rf"^\| `{name}` \| (.+) \| .* \| (.+) \|$", page, re.MULTILINE)
        assert row, name
        assert "Likewise" not in row[2], name


def messages() -> list[str]:
    """Every text in the source code, with … for what is filled in."""
    found: list[str] = []
    for path in Path(dmbp.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr | ast.Constant | ast.BinOp):
                found.append(written(node))
    return [text for text in set(found) if len(text) > 15]


def written(node: ast.AST) -> str:
    """The text of a string in the code."""
    if isinstance(node, ast.JoinedStr):
        return "".join(written(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return written(node.left) + written(node.right)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return "…"


MESSAGE = re.compile(r"^\*\*`(.+)`\*\*$", re.MULTILINE)


def unknown(page: str, known: list[str]) -> list[str]:
    """The messages of a page of which a part is in no text of the source code."""
    together = "\n".join(known)
    return [
        message
        for message in MESSAGE.findall(page)
        if not all(part in together for part in re.split("…+", message) if len(part) > 3)
    ]


def test_troubleshooting_is_about_messages_that_exist() -> None:
    page = text_of("troubleshooting.md")
    assert len(MESSAGE.findall(page)) > 25
    assert unknown(page, messages()) == []


def test_a_message_that_is_gone_is_noticed() -> None:
    known = ["class … is out of range: the model has classes 0 to …"]
    assert unknown("**`class … is out of range: the model has classes 0 to …`**", known) == []
    assert unknown("**`class … is too large`**", known) == ["class … is too large"]
