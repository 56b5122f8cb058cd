"""Validation by pydantic, with errors that read like the rest of dmbp's.

Validated classes remain plain dataclasses. Their annotations say what each field accepts:
`check_fields` validates an instance that was built in code, and `parse` builds one from the values
of a file. `check_arguments` validates settings against a function's signature. A validation error
becomes an `InputError` of one sentence, which says what is wrong, where, and which name may have
been meant.

    >>> check_arguments({"masks": (int, 6000)}, {"masks": "many"}, ErrorContext("rise"))
    Traceback (most recent call last):
    ...
    dmbp.errors.InputError: 'masks' of rise must be a whole number, not 'many'

Pydantic is imported on the first validation, because the import takes 0.05 s.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, get_args, get_type_hints

from dmbp.errors import InputError, require_known, suggestion

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter, ValidationError
    from pydantic_core import CoreSchema, ErrorDetails

T = TypeVar("T")

MAX_REPETITIONS = 10_000
"""The most iterations, and the most of whatever else a method repeats without keeping it. A number
such as 1e20, typed by mistake, would run forever."""

Location = tuple[int | str, ...]
"""The keys and indices that lead to a value, as in pydantic's `loc`."""

FORBID_UNKNOWN = {"extra": "forbid"}
"""The `__pydantic_config__` of a dataclass that `parse` builds: an unknown key is an error."""

MAX_VALUE_LENGTH = 60
"""Characters after which a value is cut off in a message."""


@dataclass(frozen=True)
class Constraint:
    """Annotation metadata: what a value must be, in words (`expected`) and as a `test`.

    Numbers and booleans are not converted, so neither text nor a float passes for a whole number.
    `instance_of` replaces the annotated type if more types are allowed than the annotation says.
    """

    expected: str
    test: Callable[[Any], bool] = lambda _: True
    instance_of: tuple[type, ...] = ()

    def __get_pydantic_core_schema__(
        self, source: Any, handler: Callable[[Any], "CoreSchema"]
    ) -> "CoreSchema":
        """Validate by the annotated type and the test; both report the same error."""
        from pydantic_core import PydanticCustomError, core_schema

        def check(value: Any, validate: Callable[[Any], Any]) -> Any:
            wrong = PydanticCustomError("must_be", "{expected}", {"expected": self.expected})
            try:
                converted = validate(value)
            except ValueError:
                raise wrong from None
            if not self.test(value):
                raise wrong
            return converted

        if self.instance_of:
            inner: Any = core_schema.is_instance_schema(self.instance_of, cls_repr=self.expected)
        else:
            inner = handler(source)
            if inner["type"] in ("int", "float", "bool"):
                inner["strict"] = True
        return core_schema.no_info_wrap_validator_function(check, inner)


@dataclass(frozen=True)
class OneOf:
    """Annotation metadata: one of `names`, which messages call a `what`."""

    what: str
    names: tuple[str, ...]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: Callable[[Any], "CoreSchema"]
    ) -> "CoreSchema":
        """Validate by the annotated type first, then look the name up."""
        from pydantic_core import core_schema

        def check(value: Any) -> Any:
            require_known(self.what, value, self.names)
            return value

        return core_schema.no_info_after_validator_function(check, handler(source))


@dataclass(frozen=True)
class ErrorContext:
    """Names for error messages: the owner of the values, and a noun for its keys.

    `key_name` returns what messages call a key, by default "'key' of owner". If
    `starts_with_owner`, messages that do not name the owner otherwise start with it.
    """

    owner: str
    key_noun: str = "entry"
    key_name: Callable[[str], str] | None = None
    starts_with_owner: bool = True

    def describe_key(self, key: str) -> str:
        """Return what messages call one of the owner's keys."""
        return self.key_name(key) if self.key_name else f"{key!r} of {self.owner}"


def check_fields(instance: Any, *, owner: str | None = None) -> None:
    """Validate a dataclass instance against the annotations of its fields.

    Args:
        instance: The instance, which is not modified.
        owner: What messages call it; by default "a" and the name of its class.

    Raises:
        InputError: If a field has a value that its annotation does not allow.
    """
    kind = cast("type[Any]", type(instance))
    values = {item.name: getattr(instance, item.name) for item in fields(instance)}
    context = ErrorContext(owner or f"a {kind.__name__}", key_noun="field", starts_with_owner=False)
    _validate(_fields_model(kind), values, lambda _: context, [item.name for item in fields(kind)])


def check_arguments(
    parameters: Mapping[str, tuple[Any, Any]], values: Mapping[str, Any], context: ErrorContext
) -> None:
    """Validate keyword arguments strictly: no value is converted to another type.

    Args:
        parameters: Annotation and default of each parameter.
        values: The arguments.
        context: How messages refer to them.

    Raises:
        InputError: If a key is unknown, or a value is not what its annotation allows.
    """
    _validate(_arguments_model(tuple(parameters.items())), values, lambda _: context, [*parameters])


def parse(kind: type[T], values: Any, context_of: Callable[[Location], ErrorContext]) -> T:
    """Build a dataclass, and the dataclasses in it, from the values of a file.

    Args:
        kind: The dataclass, with `FORBID_UNKNOWN` as its `__pydantic_config__`.
        values: A mapping, as read from a TOML or JSON file.
        context_of: Returns how messages refer to the value at a location.

    Returns:
        An instance with all values converted to what the annotations say.

    Raises:
        InputError: If a key is missing or unknown, or a value is not what its annotation allows.
    """
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_python(values)
    except ValidationError as error:
        raise InputError(_message(error, context_of, lambda at: _keys_at(kind, at))) from error


@cache
def _adapter(kind: type[T]) -> "TypeAdapter[T]":
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


@cache
def _fields_model(kind: type[Any]) -> "type[BaseModel]":
    hints = get_type_hints(kind, include_extras=True)
    return _model({item.name: (hints[item.name], ...) for item in fields(kind)}, strict=False)


@cache
def _arguments_model(parameters: tuple[tuple[str, tuple[Any, Any]], ...]) -> "type[BaseModel]":
    return _model(dict(parameters), strict=True)


def _model(parameters: Mapping[str, tuple[Any, Any]], *, strict: bool) -> "type[BaseModel]":
    from pydantic import ConfigDict, create_model

    config = ConfigDict(
        extra="forbid", strict=strict, allow_inf_nan=False, arbitrary_types_allowed=True
    )
    definitions: dict[str, Any] = dict(parameters)
    return create_model("Values", __config__=config, **definitions)


def _validate(
    model: "type[BaseModel]",
    values: Mapping[str, Any],
    context_of: Callable[[Location], ErrorContext],
    keys: list[str],
) -> None:
    from pydantic import ValidationError

    try:
        model.model_validate(dict(values))
    except ValidationError as error:
        raise InputError(_message(error, context_of, lambda _: keys)) from error


UNKNOWN_KEY_ERRORS = ("extra_forbidden", "unexpected_keyword_argument")
"""Pydantic's types of error for an unknown key."""

EXPECTED_BY_ERROR_TYPE: Mapping[str, str] = {
    "string_type": "a string",
    "path_type": "a path",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a number",
    "bool_type": "True or False",
    "bool_parsing": "True or False",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a table",
    "dataclass_type": "a table",
    "model_type": "a table",
}
"""Descriptions of the values that are expected, by pydantic's type of error."""


def _message(
    error: "ValidationError",
    context_of: Callable[[Location], ErrorContext],
    keys_at: Callable[[Location], list[str]],
) -> str:
    """Return one sentence on the first error.

    Unknown keys come first, because a misspelled key may be why another is missing.
    """
    errors = sorted(error.errors(), key=lambda details: details["type"] not in UNKNOWN_KEY_ERRORS)
    first = errors[0]
    context = context_of(first["loc"])
    prefix = f"{context.owner}: " if context.starts_with_owner else ""
    if first["type"] in UNKNOWN_KEY_ERRORS:
        key = str(first["loc"][-1])
        hint = suggestion(key, keys_at(first["loc"][:-1]))
        return f"{context.owner} takes no {context.key_noun} {key!r}; {hint}"
    if first["type"] == "missing":
        return f"{context.owner} needs {first['loc'][-1]!r}"
    if first["type"] == "value_error":  # raised by dmbp
        return f"{prefix}{first.get('ctx', {})['error']}"
    key, same = _alternatives(first, errors)
    names = [name for details in same for name in _literals(details)]
    others = list(dict.fromkeys(_expected(details) for details in same if not _literals(details)))
    if not others and isinstance(first["input"], str):
        return f"{prefix}there is no {key} {first['input']!r}; {suggestion(first['input'], names)}"
    *others, last = [*others, *map(repr, names)]
    expected = f"{', '.join(others)} or {last}" if others else last
    item = "an item of " if isinstance(first["loc"][-1], int) else ""
    return (
        f"{item}{context.describe_key(key)} must be {expected}, not {_format_value(first['input'])}"
    )


def _alternatives(
    first: "ErrorDetails", errors: "Sequence[ErrorDetails]"
) -> "tuple[str, list[ErrorDetails]]":
    """Return the key of a value, and one error for each type that its annotation allows.

    For a union, pydantic appends the name of a type to the location. Only settings have unions;
    their key is the first of the location. In a file the key is the last.
    """
    strings = [k for k, part in enumerate(first["loc"]) if isinstance(part, str)]
    depth = 1 + (strings[0] if len(strings) == len(first["loc"]) else strings[-1])
    start = first["loc"][:depth]
    return str(start[-1]), [details for details in errors if details["loc"][:depth] == start]


def _literals(error: "ErrorDetails") -> list[str]:
    if error["type"] != "literal_error":
        return []
    listed = str(error.get("ctx", {})["expected"])
    return [name.strip("'") for name in listed.replace(" or ", ", ").split(", ")]


def _expected(error: "ErrorDetails") -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "dataclass_exact_type":
        return f"a {context['class_name']}"
    if kind == "is_instance_of":
        return "a list" if context["class"] == "Sequence" else f"a {context['class']}"
    return EXPECTED_BY_ERROR_TYPE.get(kind) or str(context.get("expected", error["msg"]))


PLAIN_TYPES = (bool, int, float, str, bytes, list, tuple, dict)
"""Types of values that messages show; of other values they name the type."""


def check_range(name: str, value: float, *, least: float, most: float) -> None:
    """Raise an `InputError` unless a number is in a range, both ends of which are in it."""
    if not least <= value <= most:
        raise InputError(f"{name} must be from {least:,} to {most:,}, not {_format_value(value)}")


def _format_value(value: Any) -> str:
    try:
        is_plain = value is None or isinstance(value, PLAIN_TYPES)
        text = repr(value) if is_plain else f"a {type(value).__name__}"
    except (ValueError, RecursionError):  # Python writes no whole number of over 4300 digits
        return "a value that is too long to show"
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}…"


def _keys_at(kind: Any, location: Location) -> list[str]:
    """Return the keys that the table at a location may have."""
    for part in location:
        kind = get_args(kind)[0] if isinstance(part, int) else get_type_hints(kind)[part]
    return [item.name for item in fields(kind)] if is_dataclass(kind) else []


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def check_keywords(given: Iterable[str], known: Sequence[str], refusal: str) -> None:
    """Raise an `InputError` for the first keyword that is not known, which suggests the right one.

    Args:
        given: The keywords of a call.
        known: Those that there are.
        refusal: How the sentence begins, such as "DMBP takes no setting".
    """
    for name in given:
        if name not in known:
            raise InputError(f"{refusal} {name!r}; {suggestion(name, [*known])}")


def suggests_keywords(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Wrap a function so that a misspelt keyword is an error that suggests the right one."""
    known = [*inspect.signature(function).parameters]

    @wraps(function)
    def call(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        check_keywords(keywords, known, f"{function.__name__} takes no argument")
        return function(*arguments, **keywords)

    return call
