"""The command line as a page, made from the commands themselves."""

from collections import Counter
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from dmbp.cli import app

SHARED_BY = 4
"""An option that at least as many commands have, with the same help, is described once."""


def commands(group: Any = None, path: str = "dmbp") -> Iterator[tuple[str, Any]]:
    """Every command and its full name, as `dmbp bench run`."""
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def escape(text: str) -> str:
    """Write plain text as Markdown."""
    for character in "\\*_[]<>|`":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())


def names_of(parameter: Any) -> str:
    """How a parameter is written, as `--target WHAT`."""
    if parameter.param_type_name == "argument":
        return (parameter.metavar or parameter.name).upper()
    metavar = "" if parameter.is_flag else " " + (parameter.metavar or type_of(parameter))
    return ", ".join([*parameter.opts, *parameter.secondary_opts]) + metavar


def type_of(parameter: Any) -> str:
    """What an option takes, in capitals, or the choices that it has."""
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", str)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(choice.value) for choice in kind)
    return {int: "NUMBER", float: "NUMBER", Path: "PATH"}.get(kind, "TEXT")


def shown(command: Any) -> list[Any]:
    return [k for k in command.params if not getattr(k, "hidden", False) and k.name != "help"]


def entry(parameter: Any, *, shared: bool = False) -> list[str]:
    """A parameter and its help, and its default if the help does not say it."""
    words = escape(parameter.help or "")
    value = getattr(parameter.default, "value", parameter.default)
    is_told = parameter.is_flag if parameter.param_type_name == "option" else True
    if not (is_told or shared or "efault" in words or value in (None, [], ())):
        words += f" Default: `{value}`."
    return [f"`{names_of(parameter)}`", f": {words}", ""]


def page() -> str:
    """The page in Markdown: a section for each command, and one for the options they share."""
    all_commands = dict(commands())
    count = Counter(
        (tuple(k.opts), k.help)
        for command in all_commands.values()
        for k in shown(command)
        if k.param_type_name == "option"
    )
    shared: dict[Any, Any] = {}
    lines: list[str] = []
    for name, command in all_commands.items():
        parameters = shown(command)
        arguments = " ".join(names_of(k) for k in parameters if k.param_type_name == "argument")
        has_options = any(k.param_type_name == "option" for k in parameters)
        usage = " ".join(filter(None, [name, arguments, "[OPTIONS]" if has_options else ""]))
        lines += [f"## {name}", "", "```text", usage, "```", ""]
        lines += [escape(part) + "\n" for part in (command.help or "").split("\n\n")]
        of_models = False
        for parameter in parameters:
            key = (tuple(parameter.opts), parameter.help)
            if count[key] >= SHARED_BY:
                shared[key] = parameter
                of_models = True
            else:
                lines += entry(parameter)
        if of_models:
            theirs = [
                shared[k] for k in shared if k in {(tuple(p.opts), p.help) for p in parameters}
            ]
            listed = ", ".join(f"`{k.opts[0]}`" for k in theirs)
            lines += [
                f"It also takes [the options of several commands](#shared-options): {listed}.",
                "",
            ]
    lines += ["## Shared options", "", "Several commands have these options.", ""]
    for parameter in shared.values():
        lines += entry(parameter, shared=True)
    return "\n".join(lines)
