"""Settings of methods, as people type them (`rise.masks=1000`) or write them into a plan.

A method's settings are the keyword parameters of its constructor. They are validated against the
constructor's signature and then by the method's `check_settings`; neither needs a model.

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
from dmbp.validation import ErrorContext, check_arguments

MethodSettings = Mapping[str, Mapping[str, Any]]
"""Settings by method."""

NOT_SETTINGS = ("self", "model", "generator", "activation", "classes", "output")
"""Constructor parameters that cannot be written as text, or that depend on the model."""


def check_settings(method: str, settings: Mapping[str, Any], *, where: str = "") -> None:
    """Check a method's settings without a model.

    Args:
        method: A name in `dmbp.methods()`.
        settings: Values by the names of the constructor's parameters.
        where: Added to the method's name in messages, such as " in plan.toml".

    Raises:
        InputError: If the method or a setting is unknown, or a value is not allowed.
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
    """Check the names and types of settings against the constructor's signature."""
    if settings and not _parameters(method):
        raise InputError(f"{method}{where} has no settings")
    context = ErrorContext(
        f"{method}{where}", "setting", key_name=lambda key: f"{method}.{key}{where}"
    )
    check_arguments(_parameters(method), settings, context)


@cache
def _parameters(method: str) -> Mapping[str, tuple[Any, Any]]:
    """Return the annotation and the default of each of a method's settings."""
    constructor = METHODS[method].method.__init__
    hints = get_type_hints(constructor, include_extras=True)
    parameters = inspect.signature(constructor).parameters
    return {
        name: (hints[name], parameter.default)
        for name, parameter in parameters.items()
        if name not in NOT_SETTINGS
    }


def parse_settings(texts: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return settings by method, parsed from texts such as `rise.masks=1000`.

    Args:
        texts: The settings as typed.
        methods: The methods that will run; a setting of any other is an error.

    Raises:
        InputError: If a text is not a setting, or its method, name or value is not allowed.
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
    for method, own_settings in settings.items():
        check_settings(method, own_settings)
    return settings


def _parse_value(method: str, name: str, text: str) -> Any:
    """Return the text itself if the setting accepts text, else its value as a Python literal."""
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
    """Return the value of a Python literal, or None if the text is not a literal."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None


def with_dmbp_settings(
    settings: MethodSettings, methods: Sequence[str], options: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return settings by method, with command-line options for DMBP added to its variants.

    Args:
        settings: Settings by method; these take precedence over `options`.
        methods: The methods that will run.
        options: DMBP's settings that have a command-line option, by name.

    Raises:
        InputError: If there are options for DMBP, but no variant of it among the methods.
    """
    variants = [name for name in methods if METHODS[name].method is DMBP]
    if options and not variants:
        names = " and ".join(f"--{name}" for name in options)
        raise InputError(f"{names} applies only to DMBP; add dmbp to --methods")
    added = {name: {**options, **settings.get(name, {})} for name in variants} if options else {}
    return {**{name: dict(own) for name, own in settings.items()}, **added}
