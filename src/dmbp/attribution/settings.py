"""Settings of methods as people type them: `rise.masks=1000`.

>>> read_settings(["rise.masks=1000", "gradcam.layer=layer3"], ["rise", "gradcam"])
{'rise': {'masks': 1000}, 'gradcam': {'layer': 'layer3'}}
"""

import ast
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from dmbp.attribution import DMBP, METHODS
from dmbp.errors import InputError, require_known

MethodSettings = Mapping[str, Mapping[str, Any]]
"""MethodSettings by method."""

_NOT_TYPED = ("self", "model", "generator", "activation", "output")


def read_settings(texts: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """MethodSettings by method, checked against what each method takes."""
    settings: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, _, assignment = text.partition(".")
        setting, equals, value = assignment.partition("=")
        if not equals:
            raise InputError(f"a setting is written as rise.masks=1000, not {text!r}")
        require_known("method", name, METHODS)
        if name not in methods:
            raise InputError(f"{text!r} sets a method that is not asked for; add {name} to them")
        names = setting_names(name)
        if not names:
            raise InputError(f"{name} has no settings")
        require_known(f"setting of {name}", setting, names)
        settings.setdefault(name, {})[setting] = _value(value, name, setting)
    return settings


def with_dmbp(
    settings: MethodSettings, methods: Sequence[str], own: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Settings by method, those that are DMBP's `own` given to each of its rows that is asked for.

    What is set of a row itself counts more.
    """
    rows = [name for name in methods if METHODS[name].method is DMBP]
    if own and not rows:
        options = " and ".join(f"--{name}" for name in own)
        raise InputError(f"{options} of DMBP cannot be used without it; add dmbp to --methods")
    added = {name: {**own, **settings.get(name, {})} for name in rows} if own else {}
    return {**{name: dict(given) for name, given in settings.items()}, **added}


def setting_names(method: str) -> list[str]:
    """What a method can be told on the command line."""
    return [name for name in _parameters(method) if name not in _NOT_TYPED]


def _parameters(method: str) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(METHODS[method].method.__init__).parameters


def _value(text: str, method: str, setting: str) -> Any:
    """What was typed, as the kind of value that the setting takes."""
    wanted = _parameters(method)[setting].annotation
    kinds = [wanted, *get_args(wanted)]
    literals = _choices(wanted)
    if str in kinds or text in literals:
        return text
    value = _literal(text)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = (
        (bool in kinds and isinstance(value, bool))
        or (int in kinds and is_number and isinstance(value, int))
        or (float in kinds and is_number and math.isfinite(value))
    )
    if not fits:
        named = [_KINDS[kind] for kind in kinds if kind in _KINDS] + literals
        raise InputError(f"{method}.{setting} is {' or '.join(named)}, not {text!r}")
    return value


def check_kind(value: Any, method: str, setting: str) -> None:
    """Refuse a text where a setting takes numbers or truth values alone."""
    wanted = _parameters(method)[setting].annotation
    kinds = {kind for kind in (wanted, *get_args(wanted)) if kind in (int, float, bool, str)}
    if isinstance(value, str) and kinds and str not in kinds and not _choices(wanted):
        named = " or ".join(_KINDS[kind] for kind in _KINDS if kind in kinds)
        raise InputError(f"{method}.{setting} is {named}, not {value!r}")


def _choices(wanted: Any) -> list[str]:
    """The texts that an annotation lists."""
    kinds = [wanted, *get_args(wanted)]
    return [choice for kind in kinds for choice in get_args(kind) if isinstance(choice, str)]


_KINDS = {int: "a whole number", float: "a number", bool: "True or False"}


def _literal(text: str) -> Any:
    """A number or truth value where the text reads as one; else None."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
