"""Docstrings: their examples run, and public names say what they take, return and raise."""

import doctest
import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import dmbp

OF_LIBRARIES = ("dmbp.integrations.lightning", "dmbp.integrations.trainer")
"""Modules that import a library which takes seconds to import; they have no examples."""

MODULES = [
    "dmbp",
    *(
        module.name
        for module in walk_packages(dmbp.__path__, "dmbp.")
        if find_spec("triton") is not None or "triton" not in module.name
        if not module.name.startswith(OF_LIBRARIES)
    ),
]


def examples(module: ModuleType) -> list[doctest.DocTest]:
    """The examples of a module and of everything that is defined in it."""
    found = doctest.DocTestFinder(exclude_empty=True).find(module, module.__name__)
    return [test for test in found if test.examples]


WITH_EXAMPLES = [name for name in MODULES if examples(import_module(name))]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 5)).eval()
    images = torch.randn(1, 3, 8, 8)
    for test in examples(import_module(name)):
        test.globs |= {"dmbp": dmbp, "torch": torch, "model": model, "images": images}
        assert doctest.DocTestRunner().run(test).failed == 0, test.name


OF_CLASSES = {
    "DMBP": ["attribute", "explain"],
    "Decomposition": ["plot", "save"],
    "LinearNetwork": ["value", "pullback"],
    "integrations.MapLogger": ["step", "finish", "use"],
}
"""The methods that users call."""

RETURNED = (
    *("Decomposition", "LinearNetwork"),
    *("Cascade", "Confidence", "Perturbation", "Removal"),
)
"""Classes whose objects dmbp returns, and users do not make."""


def public_names() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Everything that users call, by the name that they use."""
    for module in (dmbp, dmbp.metrics):
        for name in module.__all__:
            if callable(found := getattr(module, name)):
                yield f"{module.__name__}.{name}", found
    for owner, names in OF_CLASSES.items():
        for name in names:
            yield f"dmbp.{owner}.{name}", attrgetter(f"{owner}.{name}")(dmbp)
    for name, row in dmbp.methods().items():
        yield f"dmbp.methods()[{name!r}]", row.method
    for name in ("MapLogger", "log_maps", "movement"):
        yield f"dmbp.integrations.{name}", getattr(dmbp.integrations, name)
    yield "dmbp.models.Classifier", dmbp.models.Classifier
    yield "dmbp.render.PanelStyle", dmbp.render.PanelStyle
    yield "dmbp.errors.UnsupportedOperation", dmbp.errors.UnsupportedOperation


PUBLIC = dict(public_names())


def undocumented(function: Callable[..., Any]) -> list[str]:
    """What a docstring does not say about a function, or about how a class is made."""
    text = function.__doc__ or ""
    missing = [] if text else ["a docstring"]
    if function is dmbp.DMBPError or function.__name__ in RETURNED:
        return missing
    signature, arguments = inspect.signature(function), section(text, "Args")
    missing += [
        f"argument {name}"
        for name in signature.parameters
        if name != "self" and not re.search(rf"^ *\*{{0,2}}{name}: \S", arguments, re.MULTILINE)
    ]
    returns_nothing = signature.return_annotation in (None, "None")
    if not (inspect.isclass(function) or returns_nothing or section(text, "Returns")):
        missing.append("what it returns")
    return missing


def section(text: str, title: str) -> str:
    """The indented lines below `title:`."""
    found = re.search(
        rf"^{title}:\n((?:(?: +.*)?\n)+)", inspect.cleandoc(text) + "\n", re.MULTILINE
    )
    return found[1] if found else ""


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_documented(name: str) -> None:
    assert undocumented(PUBLIC[name]) == []


LONGEST_TYPE = 60
"""Characters of a parameter's type in `help()`; an alias such as `Target` stays an alias there."""


@pytest.mark.parametrize("name", [name for name in PUBLIC if not name.endswith("DMBPError")])
def test_types_in_signatures_are_short_enough_to_read(name: str) -> None:
    for parameter in inspect.signature(PUBLIC[name]).parameters.values():
        assert len(inspect.formatannotation(parameter.annotation)) <= LONGEST_TYPE, parameter


def test_what_is_missing_is_found() -> None:
    """The check above can fail: each of these lacks something."""

    def bare(images: int) -> int:
        return images

    def half(images: int, size: int) -> int:
        """Do something.

        Args:
            images: Some images.
        """
        return images + size

    assert undocumented(bare) == ["a docstring", "argument images", "what it returns"]
    assert undocumented(half) == ["argument size", "what it returns"]


@pytest.mark.parametrize("name", dmbp.methods())
def test_help_shows_our_own_parameters(name: str) -> None:
    """Captum's base class takes and documents a `forward_func`, which our methods do not take."""
    method = dmbp.methods()[name].method
    assert next(iter(inspect.signature(method).parameters)) == "model"
    for function in (method, method.__init__, method.attribute):
        assert "forward_func" not in (inspect.getdoc(function) or "")


def test_the_map_of_the_package_names_everything_public() -> None:
    """`help(dmbp)` lists each public name, and each folder of the package."""
    text = dmbp.__doc__ or ""
    folders = [path.parent.name for path in Path(dmbp.__file__).parent.glob("*/__init__.py")]
    for name in [*dmbp.__all__, *folders]:
        if name != "__version__":
            assert re.search(rf"\b{name}\b", text), name


def test_the_tree_of_errors_is_the_one_in_the_docstring() -> None:
    classes = [value for value in vars(dmbp.errors).values() if inspect.isclass(value)]
    errors = {value.__name__ for value in classes if issubclass(value, dmbp.DMBPError)}
    ancestors, drawn = ["DMBPError"], {"DMBPError"}
    branches = re.findall(r"^([ │]*)[├└]── (\w+)", dmbp.errors.__doc__ or "", re.MULTILINE)
    for indent, name in branches:
        depth = len(indent) // 4  # four columns a level
        ancestors = [*ancestors[:depth], name]
        assert getattr(dmbp.errors, name).__bases__[0].__name__ == ancestors[depth - 1]
        drawn.add(name)
    assert drawn == errors
