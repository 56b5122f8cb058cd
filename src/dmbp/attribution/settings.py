"""Settings of methods, as people type them (`rise.masks=1000`) or write them into a plan.

A method's settings are the keyword parameters of its constructor, so they are validated against its
signature, and then by the method's own `check_settings`; neither needs a model.

    >>> parse_settings(["rise.masks=1000", "gradcam.layer=layer3"], ["rise", "gradcam"])
    {'rise': {'masks': 1000}, 'gradcam': {'layer': 'layer3'}}
    >>> check_settings("rise", {"maks": 1000})
    Traceback (most recent call last):
    ...
    dmbp.errors.InputError: rise takes no setting 'maks'; did you mean 'masks'?
"""

import ast
import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, get_type_hints

from dmbp.attribution.dmbp import DMBP
from dmbp.attribution.registry import METHODS
from dmbp.errors import InputError, require_known, suggestion
from dmbp.validation import Place, check_arguments

MethodSettings = Mapping[str, Mapping[str, Any]]
"""Settings by method."""

NOT_SETTINGS = ("self", "model", "generator", "activation", "output")
"""Parameters of constructors that cannot be typed, or that depend on the model."""


def check_settings(method: str, settings: Mapping[str, Any], *, where: str = "") -> None:
    """Check a method's settings without a model.

    Args:
        method: A name in `dmbp.methods()`.
        settings: Values by the name of the constructor's parameter.
        where: Added to the method's name in messages, such as " in plan.toml".

    Raises:
        InputError: The method or a setting is unknown, or a value is not allowed.
    """
    if method not in METHODS:
        hint = suggestion(method, list(METHODS))
        raise InputError(f"there is no method {method!r}{where}; {hint}")
    _check_types(method, settings, where)
    spec = METHODS[method]
    defaults = {name: default for name, (_, default) in _parameters(method).items()}
    try:
        spec.method.check_settings(**{**defaults, **spec.settings, **settings})
    except InputError as error:
        raise InputError(f"settings of {method}{where}: {error}") from error


def _check_types(method: str, settings: Mapping[str, Any], where: str = "") -> None:
    """Check names and types of settings against the constructor's signature."""
    if settings and not _parameters(method):
        raise InputError(f"{method}{where} has no settings")
    place = Place(f"{method}{where}", "setting", key_name=lambda key: f"{method}.{key}{where}")
    check_arguments(_parameters(method), settings, place)


@cache
def _parameters(method: str) -> Mapping[str, tuple[Any, Any]]:
    """Return the annotation and the default of each of a method's settings."""
    make = METHODS[method].method.__init__
    hints = get_type_hints(make, include_extras=True)
    parameters = inspect.signature(make).parameters
    return {
        name: (hints[name], parameter.default)
        for name, parameter in parameters.items()
        if name not in NOT_SETTINGS
    }


def parse_settings(texts: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return settings by method, parsed from texts such as `rise.masks=1000`.

    Args:
        texts: What was typed.
        methods: The methods that will run; a setting of any other is an error.

    Raises:
        InputError: A text is not a setting, or its method, name or value is not allowed.
    """
    settings: dict[str, dict[str, Any]] = {}
    for text in texts:
        method, _, assignment = text.partition(".")
        name, equals, value = assignment.partition("=")
        if not equals:
            raise InputError(f"a setting is written as rise.masks=1000, not {text!r}")
        require_known("method", method, METHODS)
        if method not in methods:
            raise InputError(
                f"{text!r} sets a method that will not run; add {method} to the methods"
            )
        settings.setdefault(method, {})[name] = _parse_value(method, name, value)
    for method, given in settings.items():
        check_settings(method, given)
    return settings


def _parse_value(method: str, name: str, text: str) -> Any:
    """Return the text where the setting takes text, else the Python literal that it spells."""
    try:
        _check_types(method, {name: text})
    except InputError as error:
        value = _literal(text)
        if value is None:
            raise
        try:
            _check_types(method, {name: value})
        except InputError:
            raise error from None
        return value
    return text


def _literal(text: str) -> Any:
    """Return the number or truth value that a text spells, or None."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None


def with_dmbp_settings(
    settings: MethodSettings, methods: Sequence[str], own: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return settings by method with DMBP's options added to each of its variants.

    Args:
        settings: Settings by method; these win over `own`.
        methods: The methods that will run.
        own: Options of DMBP.

    Raises:
        InputError: There are options of DMBP, but no variant of it among the methods.
    """
    variants = [name for name in methods if METHODS[name].method is DMBP]
    if own and not variants:
        options = " and ".join(f"--{name}" for name in own)
        raise InputError(f"{options} applies only to DMBP; add dmbp to --methods")
    added = {name: {**own, **settings.get(name, {})} for name in variants} if own else {}
    return {**{name: dict(given) for name, given in settings.items()}, **added}
