"""The API reference: `.. public-names:: dmbp.metrics` documents a package's `__all__`.

Each name is documented once, under the shortest name it is public by; other packages that have it,
too, link there. Names in single backticks become links if they are public, code otherwise.
"""

import inspect
import re
from functools import cache
from importlib import import_module
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import dmbp

PACKAGES = (
    "dmbp",
    "dmbp.targets",
    "dmbp.metrics",
    "dmbp.models",
    "dmbp.integrations",
    "dmbp.attribution",
    "dmbp.decompose",
    "dmbp.linear",
    "dmbp.render",
    "dmbp.data",
    "dmbp.bench",
    "dmbp.engine",
    "dmbp.errors",
)
"""Where public names are looked for, the first place first."""

METHODS_PAGE = "dmbp.methods()"

RESULTS = (
    "dmbp.workflows.explanation.Explanation",
    "dmbp.workflows.explanations.Explanations",
    "dmbp.workflows.prediction.InputPrediction",
    "dmbp.workflows.prediction.Prediction",
    "dmbp.workflows.compare.Comparison",
    "dmbp.workflows.sanity.SanityCheck",
    "dmbp.workflows.doctor.Diagnosis",
    "dmbp.workflows.datasets.ExplainedItem",
)
"""Classes without a public name whose objects users hold."""


def names_of(package: str) -> list[str]:
    """The public names of a package: `__all__`, or of the errors every class."""
    module = import_module(package)
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if name != "__version__"]
    return [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == package
    ]


def identity(package: str, name: str) -> Any:
    """What tells whether two names mean the same: an object, or for plain values their place."""
    value = getattr(import_module(package), name)
    return id(value) if inspect.isclass(value) or callable(value) else f"{package}.{name}"


@cache
def homes() -> dict[Any, str]:
    """The name under which each public object is documented."""
    found: dict[Any, str] = {}
    for package in PACKAGES:
        for name in names_of(package):
            if not isinstance(getattr(import_module(package), name), ModuleType):
                found.setdefault(identity(package, name), f"{package}.{name}")
    return found


def method_classes() -> dict[str, type]:
    """The classes of attribution methods that have no other public name, by their home."""
    classes = {row.method for row in dmbp.methods().values()}
    return {
        f"{cls.__module__}.{cls.__qualname__}": cls for cls in classes if id(cls) not in homes()
    }


def directive_for(value: Any) -> list[str]:
    """The autodoc directive for a value, and its options."""
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, Exception) else "autoclass"
        return [kind, "   :members:"]
    if inspect.isroutine(value):
        return ["autofunction"]
    return ["autodata", "   :no-value:"]


class PublicNames(SphinxDirective):
    """Documents all public names of a package."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        package = self.arguments[0]
        if package == METHODS_PAGE:
            return self.parsed(self.methods())
        if package == "results":
            lines = [[f".. autoclass:: {name}", "   :members:", ""] for name in RESULTS]
            return self.parsed([line for entry in lines for line in entry])
        module = import_module(package)
        here, elsewhere, folders = [], [], []
        for name in sorted(names_of(package), key=str.lower):
            value = getattr(module, name)
            if isinstance(value, ModuleType):
                folders.append(value.__name__)
            elif homes()[identity(package, name)] == f"{package}.{name}":
                here.append(name)
            else:
                elsewhere.append(homes()[identity(package, name)])
        lines = [f".. currentmodule:: {package}", ""]
        if here:
            lines += [".. autosummary::", "   :nosignatures:", ""]
            lines += [f"   {name}" for name in here] + [""]
        if elsewhere:
            links = ", ".join(f":py:obj:`{name}`" for name in elsewhere)
            lines += [f"Also here: {links}.", ""]
        if folders:
            links = ", ".join(f":doc:`{name} </reference/api/{name}>`" for name in folders)
            lines += [f"Packages: {links}.", ""]
        for name in here:
            directive, *options = directive_for(getattr(module, name))
            lines += [f".. {directive}:: {package}.{name}", *options, ""]
        return self.parsed(lines)

    def methods(self) -> list[str]:
        lines: list[str] = []
        by_class: dict[type, list[str]] = {}
        for name, row in dmbp.methods().items():
            by_class.setdefault(row.method, []).append(name)
        classes = method_classes()
        for home, cls in sorted(classes.items(), key=lambda item: by_class[item[1]]):
            names = ", ".join(f"``{name}``" for name in by_class[cls])
            lines += [f".. autoclass:: {home}", "   :no-members:", "", f"   Names: {names}.", ""]
        return lines

    def parsed(self, lines: list[str]) -> list[nodes.Node]:
        container = nodes.container()
        self.state.nested_parse(StringList(lines, source=self.get_source_info()[0]), 0, container)
        return container.children


def link_to(text: str) -> str:
    """A link to a public name in backticks, or code."""
    name = re.sub(r"\(.*\)$", "", text)
    if name in homes().values():
        return f":py:obj:`{text} <{name}>`"
    return f"``{text}``"


COLON = "\ue000"
"""Stands for a colon in what a function returns, or what an attribute is, until it is parsed."""

ONE_BACKTICK = re.compile(r"(?<![`:\\\w])`([^`\n]+(?:\n[^`\n]+)?)`(?!`|_)(\w?)")


def write_backticks(_app: Sphinx, _what: str, _name: str, _obj: Any, _opts: Any, lines: list[str]):
    """Docstrings are written for `help()`: one backtick is code, `*` and `|` mean nothing."""
    if _what == "data" and type(_obj).__doc__ in ("\n".join(lines), inspect.getdoc(type(_obj))):
        lines.clear()
    text = "\n".join(lines)
    text = ONE_BACKTICK.sub(
        lambda found: link_to(" ".join(found[1].split())) + ("\\ " if found[2] else "") + found[2],
        text,
    )
    parts = re.split(r"(``.+?``|:py:obj:`[^`]+`)", text, flags=re.DOTALL)
    for i in range(0, len(parts), 2):  # outside of code
        parts[i] = re.sub(r"(?m)(?<!^)(?<!^ {4})(?<!^ {8})(?<![*\\])\*(?!\*)", r"\\*", parts[i])
        parts[i] = parts[i].replace("|", r"\|")
    lines[:] = "".join(parts).split("\n")
    section = "Returns:" if _what in ("attribute", "property") else ""
    for number, line in enumerate(lines):
        if line and not line.startswith(" ") and line.endswith(":"):
            section = line
        elif section == "Returns:":
            lines[number] = line.replace(": ", COLON)


def restore_colons(
    _app: Sphinx, _what: str, _name: str, _obj: Any, _opts: Any, lines: list[str]
) -> None:
    """After Napoleon, which takes what stands before a colon for a type."""
    lines[:] = [line.replace(COLON, ": ") for line in lines]


def find_private(app: Sphinx, env: Any, node: Any, contnode: Any) -> Any:
    """Resolve names by where they are defined, and show internal names that exist as plain code."""
    target = node.get("reftarget", "")
    candidates = [target] if target.startswith("dmbp.") else []
    module = node.get("py:module")
    if module and "." not in target:
        candidates.append(f"{module}.{target}")
    for candidate in candidates:
        try:
            value = resolve_name(candidate)
        except (AttributeError, ImportError, ValueError):
            continue
        home = homes().get(id(value)) if callable(value) else None
        if home:
            domain = env.get_domain("py")
            return domain.resolve_xref(
                env, node["refdoc"], app.builder, "obj", home, node, contnode
            )
        return contnode
    return None


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("public-names", PublicNames)
    app.connect("autodoc-process-docstring", write_backticks, priority=100)
    app.connect("autodoc-process-docstring", restore_colons, priority=900)
    app.connect("missing-reference", find_private)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
