"""The package as a whole: its public names, what importing it loads, and its documents."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy
import pytest
import torch
from PIL import Image

import dmbp
from dmbp.data import sample_photos
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


class TwoHeads(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scores": self.inner(x), "more": x.mean((2, 3))}


class Masked(TwoHeads):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.inner(x * mask)


def test_the_readmes_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(300)
    ).eval()
    images = torch.randn(1, 3, 16, 16)
    model(images)
    import_torchvision()
    sample_photos()["cat"][0].save("photo.jpg")
    names = {"model": model, "images": images, "mask": torch.rand(len(images), 1, 1, 1)}
    names |= {"two_heads": TwoHeads(model).eval(), "masked": Masked(model).eval()}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert (tmp_path / "cat.png").exists()


def test_the_python_about_datasets_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sample_photos()["cat"][0].resize((200, 133)).save("photo.jpg")
    page = (ROOT / "docs/datasets.md").read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "docs/datasets.md", "exec"), names)
    assert names["maps"].shape == (12, 3, 16, 16)
    assert list(names["frame"].target) == ["cat", "dog"]


def test_the_python_about_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line but `show()`, which would open a window."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Image.Image, "show", lambda _: None)
    monkeypatch.setenv("DISPLAY", ":0")
    import_torchvision()
    sample_photos()["cat"][0].resize((200, 133)).save("photo.jpg")
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(16, 2),
    ).eval()  # fmt: skip
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)
    assert len(blocks) == 5
    names: dict[str, Any] = {"network": network, "images": torch.randn(1, 3, 32, 32)}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    assert names["again"] == names["explanation"].decomposition
    for file in ("cat.png", "cat.svg", "cat.html", "methods.png", "gradcam.png"):
        assert (tmp_path / file).stat().st_size > 1000, file


def test_the_inputs_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each picture has the colours of what speaks for the class and against it."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/inputs.md").read_text(), re.DOTALL)
    assert len(blocks) == 5
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/inputs.md", "exec"), names)
    assert dmbp.load("heart.safetensors").attribution.shape == (1, 2, 200)
    for picture in ("heart.png", "sound.png", "patient.png"):
        with Image.open(picture) as image:
            pixels = numpy.asarray(image.convert("RGB"), dtype=int)
        red, blue = pixels[..., 0] - pixels[..., 2], pixels[..., 2] - pixels[..., 0]
        assert min((red > 80).mean(), (blue > 80).mean()) > 1e-3, picture


def test_the_python_about_targets_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/targets.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/targets.md", "exec"), names)
    assert [str(k) for k in dmbp.load("regions.safetensors").targets][1] == "region:1@box=2,2,14,30"


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
"""Code, in which brackets are calls. A link whose text is code keeps its brackets."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text())):
        if link.startswith("http"):
            continue
        file, _, heading = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        if heading:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
            assert heading in anchors, link


def test_commands_in_the_documents_exist() -> None:
    """Every `python -m benchmarks.NAME` and `python scripts/NAME.py` that a page names."""
    text = "\n".join(page.read_text() for page in PAGES)
    benchmarks = set(re.findall(r"-m\s+benchmarks\.(\w+)", text))
    assert benchmarks
    for name in benchmarks:
        module, folder = f"benchmarks/{name}.py", f"benchmarks/{name}/__main__.py"
        assert (ROOT / module).exists() or (ROOT / folder).exists(), name
    scripts = set(re.findall(r"scripts/\w+\.py", text))
    assert {path for path in scripts if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize("folder", ["benchmarks", "scripts"])
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
