"""The keys of a benchmark plan as tables, made from the classes that it is validated against."""

import re
from dataclasses import MISSING, fields
from inspect import cleandoc
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from dmbp.bench.plan import MethodEntry, PlanFile, Task, make_variant
from dmbp.data.dataset import READERS
from dmbp.metric_table import METRICS
from dmbp.models.input_settings import InputSettings
from dmbp.validation import Constraint, OneOf

FILE = {
    "methods": '"all", or a list of names and of the tables below',
    "settings": "settings for all entries of a method, `[settings.gradcam]`",
    "tasks": "a dataset, a model and metrics each, `[[tasks]]`",
    "paper": "the paper's table to print with the results: comparison, ablation, reinitialisation "
    "or none",
}


def arguments(owner: Any) -> dict[str, str]:
    """What a docstring says about each argument."""
    text = cleandoc(owner.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in found}


def kind(hint: Any) -> str:
    """What a value is, in words."""
    for mark in getattr(hint, "__metadata__", ()):
        if isinstance(mark, Constraint):
            return mark.expected
        if isinstance(mark, OneOf):
            names = ", ".join(f"`{name}`" for name in mark.names)
            long = {frozenset(READERS): "a dataset's", frozenset(METRICS): "a metric's"}
            if owner := long.get(frozenset(mark.names)):
                return f"{owner} name, above"
            return f"one of {names}"
    parts = [part for part in get_args(hint) if part not in (NoneType, Ellipsis)]
    if get_origin(hint) is tuple or get_origin(hint) is list:
        return f"a list, each {kind(parts[0])}"
    if get_origin(hint) is dict:
        return "a table"
    if parts and get_origin(hint) is not None and hint.__class__.__name__ != "_AnnotatedAlias":
        literal = all(isinstance(part, str) for part in parts)
        return "one of " + ", ".join(f"`{p}`" for p in parts) if literal else kind(parts[0])
    return {str: "text", int: "a whole number", Path: "a path"}.get(hint, "a table")


def table(owner: Any, words: dict[str, str]) -> list[str]:
    hints = get_type_hints(owner, include_extras=True)
    lines = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    for item in fields(owner):
        if item.default is not MISSING:
            value = item.default
            default = "" if value is None or value == () else f"`{_toml(value)}`"
        else:
            default = "" if item.default_factory is not MISSING else "*needed*"
        meaning = words.get(item.name, "").replace("|", "\\|")
        lines.append(f"| `{item.name}` | {kind(hints[item.name])} | {default} | {meaning} |")
    return [*lines, ""]


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def page() -> str:
    """The tables in Markdown."""
    inputs, task = arguments(InputSettings), arguments(Task)
    meanings = {
        name: inputs.get(name, words) if re.match("Likewise|These and", words) else words
        for name, words in task.items()
    }
    lines = ["## The file", "", *table(PlanFile, FILE)]
    entry = {**arguments(make_variant), "name": arguments(make_variant)["method"]}
    lines += ["## An entry of `methods`", "", *table(MethodEntry, entry)]
    lines += ["## A task", "", *table(Task, meanings)]
    return "\n".join(lines)
