"""The package as a whole: its public names, its layers, its documents."""

import ast
import re
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image

import dmbp
from tests.conftest import ROOT

SOURCE = ROOT / "src" / "dmbp"

# Each imports only from those before it.
LAYERS = (
    "errors",
    "terminal",
    "options",
    "names",
    "activation",
    "linear",
    "engine",
    "decompose",
    "attribution",
)
LAYERS = (*LAYERS, "metrics", "models", "data", "render", "method_settings", "model_choice")
LAYERS = (
    *LAYERS,
    "photo_question",
    "explanation",
    "explain",
    "compare",
    "sanity",
    "memory_peak",
    "examination",
    "doctor",
    "bench",
    "demo",
    "cli",
    "__main__",
)

# A decomposition draws and saves itself: the one look downwards, inside a function.
EXCEPTIONS = {("decompose/decomposition.py", "render")}


def layer_of(name: str) -> int:
    return LAYERS.index(name)


def test_layers_import_one_way() -> None:
    for path in sorted(SOURCE.rglob("*.py")):
        relative = path.relative_to(SOURCE)
        own = relative.parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                parts = name.split(".")
                if parts[0] != "dmbp" or len(parts) < 2:
                    continue
                if (relative.as_posix(), parts[1]) in EXCEPTIONS:
                    continue
                assert layer_of(parts[1]) <= layer_of(own), f"{relative} imports {name}"


def test_the_core_imports_torch_and_numpy_alone() -> None:
    allowed = {"torch", "numpy", "dmbp", "safetensors"}
    for layer in ("linear", "engine", "decompose"):
        for path in sorted((SOURCE / layer).glob("*.py")):
            for node in ast.parse(path.read_text()).body:
                name = node.module if isinstance(node, ast.ImportFrom) else None
                if name and name.split(".")[0] not in allowed:
                    import sys

                    assert name.split(".")[0] in sys.stdlib_module_names, f"{path} imports {name}"


def test_public_names() -> None:
    assert sorted(dmbp.__all__) == [
        "DMBP",
        "DMBPError",
        "Decomposition",
        "LinearNetwork",
        "Pieces",
        "Settings",
        "__version__",
        "explain_func",
        "linearize",
        "load",
        "methods",
        "metrics",
    ]
    for name in dmbp.__all__:
        assert getattr(dmbp, name) is not None
    for name in ("errors", "linear", "metrics", "models", "render"):  # before they are imported
        assert dmbp.__getattr__(name).__name__ == f"dmbp.{name}"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dmbp.nothing  # noqa: B018


def test_every_module_says_what_it_is() -> None:
    for path in SOURCE.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path


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
    names = {"model": model, "images": images, "mask": torch.rand(len(images), 1, 1, 1)}
    names |= {"two_heads": TwoHeads(model).eval(), "masked": Masked(model).eval()}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert (tmp_path / "cat.png").exists()


def test_the_inputs_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each picture has the colours of what speaks for the class and against it."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/inputs.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/inputs.md", "exec"), names)
    assert dmbp.load("heart.safetensors").attribution.shape == (1, 2, 200)
    for picture in ("heart.png", "sound.png", "patient.png"):
        with Image.open(picture) as image:
            pixels = numpy.asarray(image.convert("RGB"), dtype=int)
        red, blue = pixels[..., 0] - pixels[..., 2], pixels[..., 2] - pixels[..., 0]
        assert min((red > 80).mean(), (blue > 80).mean()) > 1e-3, picture
