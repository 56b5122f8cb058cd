"""The architecture: which part of the package may import which, without import cycles."""

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT

SOURCE = ROOT / "src" / "dmbp"

# From the bottom to the top: each part imports only from itself and from parts above it in this
# list. A package's own `__init__` comes after all of its modules.
LAYERS = (
    "errors",
    "files",
    "display",
    "validation",
    "process",
    "devices",
    "precision",
    "baseline",
    "probabilities",
    "metric_table",
    "linear.lines",
    "linear.rules",
    "linear.steps",
    "linear.named_target",
    "linear.targets",
    "linear.model",
    "linear.capture",
    "linear.freeze",
    "linear.network",
    "linear",
    "targets",
    "engine.gradients",
    "engine.base",
    "engine.plan",
    "engine.autograd",
    "engine.readout",
    "engine.cpu",
    "engine.gpu",
    "engine.select",
    "engine.forward",
    "engine",
    "decompose",
    "attribution",
    "metrics",
    "models",
    "data",
    "render",
    "workflows",
    "bench",
    "web",
    "integrations",
    "cli",
    "__main__",
)

# A decomposition draws itself: the one import of a higher layer, inside a function.
EXCEPTIONS = {("decompose.decomposition", "render")}

CORE = ("linear", "engine", "decompose")
CORE_IMPORTS = {"torch", "numpy", "safetensors", "dmbp"} | sys.stdlib_module_names
TRITON = "engine.gpu.triton"

Modules = Mapping[str, str]
"""Sources by module name, without the leading `dmbp.`."""


@cache
def package() -> Modules:
    return {_module_name(path): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}


def _module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(modules: Modules, name: str, *, at_import: bool = False) -> Iterator[str]:
    """The modules that `name` imports: all of them, or those imported when it is imported."""
    tree = ast.parse(modules[name])
    nodes = tree.body if at_import else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            for alias in node.names:
                inner = f"{module}.{alias.name}".removeprefix("dmbp.")
                yield f"dmbp.{inner}" if inner in modules else module


def own_imports(modules: Modules, name: str, *, at_import: bool = False) -> list[str]:
    found = imports(modules, name, at_import=at_import)
    return [module.removeprefix("dmbp.") for module in found if module.startswith("dmbp.")]


def layer(name: str) -> int:
    """The most specific layer that a module belongs to."""
    parts = name.split(".")
    prefixes = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    found = next((prefix for prefix in prefixes if prefix in LAYERS), None)
    assert found is not None, f"dmbp.{name} belongs to no layer of LAYERS"
    return LAYERS.index(found)


def upward_imports(modules: Modules) -> list[str]:
    return [
        f"dmbp.{name} imports dmbp.{other}"
        for name in modules
        if name
        for other in own_imports(modules, name)
        if layer(other) > layer(name) and (name, other.split(".")[0]) not in EXCEPTIONS
    ]


def triton_imports(modules: Modules) -> list[str]:
    """Imports of Triton's kernels by anything but themselves and the one place that chooses."""
    return [
        f"dmbp.{name} imports {other}"
        for name in modules
        if not name.startswith(TRITON) and name != "engine.select"
        for other in imports(modules, name)
        if other.startswith((f"dmbp.{TRITON}", "triton"))
    ]


def cycles(modules: Modules) -> list[str]:
    """Chains of imports that come back to where they began."""
    graph = {name: own_imports(modules, name, at_import=True) for name in modules}
    done: set[str] = set()
    found: list[str] = []

    def visit(name: str, above: Sequence[str]) -> None:
        if name in above:
            found.append(" → ".join([*above[above.index(name) :], name]))
        elif name not in done:
            for other in graph[name]:
                visit(other, [*above, name])
            done.add(name)

    for name in graph:
        visit(name, [])
    return found


def test_layers_import_one_way() -> None:
    assert upward_imports(package()) == []


def test_only_the_selection_of_an_engine_knows_triton() -> None:
    assert triton_imports(package()) == []


def test_no_import_goes_in_circles() -> None:
    assert cycles(package()) == []


def test_cpu_and_gpu_engines_do_not_know_each_other() -> None:
    for name in package():
        for own, other in (("engine.cpu", "engine.gpu"), ("engine.gpu", "engine.cpu")):
            if name.startswith(own):
                assert not [m for m in own_imports(package(), name) if m.startswith(other)], name


def test_the_core_imports_torch_and_numpy_alone() -> None:
    for name in package():
        if name.split(".")[0] in CORE and not name.startswith(TRITON):
            for module in imports(package(), name, at_import=True):
                assert module.split(".")[0] in CORE_IMPORTS, f"dmbp.{name} imports {module}"


@pytest.mark.parametrize(
    ("module", "line", "check"),
    [
        ("engine.plan.plan", "from dmbp.engine.gpu.triton.site import TritonSite", triton_imports),
        ("engine.gpu.engine", "import triton", triton_imports),
        ("engine.plan.plan", "from dmbp.engine.gpu.engine import GpuEngine", upward_imports),
        ("linear.network", "from dmbp.decompose import Settings", upward_imports),
        ("linear.lines", "from dmbp.linear.linearizer import Linearizer", upward_imports),
        ("engine.plan.kernels", "from dmbp.engine.plan.plan import ExecutionPlan", cycles),
    ],
)
def test_a_wrong_import_is_found(module: str, line: str, check: object) -> None:
    """The checks above can fail: a forbidden import, added to a module, is named."""
    assert callable(check)
    changed = {**package(), module: f"{package()[module]}\n{line}\n"}
    assert [found for found in check(changed) if f"{module}" in found]
