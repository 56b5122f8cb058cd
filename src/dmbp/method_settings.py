"""Settings of methods as people type them: `rise.masks=1000`.

>>> read_settings(["rise.masks=1000", "gradcam.layer=layer3"], ["rise", "gradcam"])
{'rise': {'masks': 1000}, 'gradcam': {'layer': 'layer3'}}
"""

import ast
import inspect
from collections.abc import Sequence
from typing import Any

from dmbp.attribution import METHODS
from dmbp.errors import InputError
from dmbp.names import known

_NOT_TYPED = ("self", "model", "generator", "activation")


def read_settings(texts: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Settings by method, checked against what each method takes."""
    settings: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, _, assignment = text.partition(".")
        setting, equals, value = assignment.partition("=")
        if not equals:
            raise InputError(f"a setting is written as rise.masks=1000, not {text!r}")
        known("method", name, METHODS)
        if name not in methods:
            raise InputError(f"{text!r} sets a method that is not asked for; add {name} to them")
        known(f"setting of {name}", setting, setting_names(name))
        settings.setdefault(name, {})[setting] = _value(value)
    return settings


def setting_names(method: str) -> list[str]:
    """What a method can be told on the command line."""
    parameters = inspect.signature(METHODS[method].method.__init__).parameters
    return [name for name in parameters if name not in _NOT_TYPED]


def _value(text: str) -> Any:
    """A number, True, None… where it reads as one; else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
