"""The package as a whole: its public names, and what importing it loads."""

import ast
import re
import subprocess
import sys
from pkgutil import resolve_name

import pytest

import dmbp
from dmbp.models.torchvision_models import import_torchvision
from tests.conftest import ROOT

SOURCE = ROOT / "src" / "dmbp"


PUBLIC = [
    "DMBP",
    "DMBPError",
    "Decomposition",
    "LinearNetwork",
    "Pieces",
    "Settings",
    "__version__",
    "bench",
    "compare",
    "doctor",
    "explain",
    "explain_dataset",
    "explain_func",
    "frame",
    "linearize",
    "load",
    "methods",
    "metrics",
    "models",
    "rather_than",
    "render",
    "sanity",
    "targets",
]


def fresh_python(code: str) -> str:
    """What a new interpreter prints that runs `code`."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_public_names() -> None:
    assert sorted(dmbp.__all__) == PUBLIC
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dmbp.nothing  # noqa: B018


def test_public_names_are_what_type_checkers_see() -> None:
    """Names are imported on first use; the imports that type checkers read must be the same."""
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.asname or alias.name: resolve_name(f"{node.module}:{alias.name}")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted([*typed, "__version__"]) == PUBLIC
    for name, found in typed.items():
        assert getattr(dmbp, name) is found, name


def test_nothing_is_imported_before_it_is_used() -> None:
    """`import dmbp` loads no torch, the core no Captum, and folders are there when first named."""
    heavy = "[m for m in ('torch', 'captum', 'matplotlib') if m in sys.modules]"
    assert fresh_python(f"import sys, dmbp; print(dmbp.__version__, {heavy})").endswith(" []")
    code = (
        "import sys; sys.modules['captum'] = None\n"  # which then cannot be imported
        "import torch, dmbp\n"
        "from torch import nn\n"
        "from dmbp.decompose import Settings\n"
        "from dmbp.decompose.learn import decompose_network\n"
        "model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()\n"
        "net = dmbp.linearize(model, torch.randn(1, 3), target=0)\n"
        "print(decompose_network(net, Settings(iterations=2, reference=None)).output.shape)\n"
        "print(dmbp.errors.__name__, dmbp.render.__name__, dmbp.models.__name__)"
    )
    assert fresh_python(code).splitlines() == [
        "torch.Size([1])",
        "dmbp.errors dmbp.render dmbp.models",
    ]


def test_a_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                where = f"{path.relative_to(SOURCE)}:{node.lineno}"
                places.setdefault(node.name, []).append(where)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("folder", ["benchmarks", "scripts", "docs/figures", "docs/gallery"])
def test_benchmarks_and_scripts_import_names_that_exist(folder: str) -> None:
    """They run by hand only, so nothing else notices a name of ours that is gone."""
    import_torchvision()  # before Lightning does, which fails with a CPU build of torch
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dmbp"):
                for alias in node.names:
                    resolve_name(f"{node.module}:{alias.name}")


def test_names_in_the_recipes_exist() -> None:
    """Every class and constant that CONTRIBUTING.md names, in the code that it describes."""
    named = re.findall(r"`([A-Z]\w+)`", (ROOT / "CONTRIBUTING.md").read_text())
    code = "\n".join(
        p.read_text() for part in ("src", "tests") for p in ROOT.glob(f"{part}/**/*.py")
    )
    assert "METHODS" in named
    assert [
        name for name in named if not re.search(rf"^(class )?{name}\b", code, re.MULTILINE)
    ] == []
