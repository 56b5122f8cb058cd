"""Validation by pydantic, with errors that read like the rest of dmbp's.

Dataclasses stay dataclasses: their annotations say what each field takes, `check_fields` validates
an instance that was built in code, `parse` builds one from the values of a file, and
`check_arguments` validates settings against a function's signature. Whatever pydantic objects to
becomes one sentence of an `InputError`: what was met, where, and which name may have been meant.

    >>> check_arguments({"masks": (int, 6000)}, {"masks": "many"}, Place("rise"))
    Traceback (most recent call last):
    ...
    dmbp.errors.InputError: 'masks' of rise must be a whole number, not 'many'

Pydantic is imported when something is first validated, because that takes 0.05 s.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args, get_type_hints

from dmbp.errors import InputError, require_known, suggestion

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter, ValidationError
    from pydantic_core import CoreSchema, ErrorDetails

T = TypeVar("T")

Location = tuple[int | str, ...]
"""Keys and positions that lead to a value, as pydantic counts them."""

FORBID_UNKNOWN = {"extra": "forbid"}
"""The `__pydantic_config__` of a dataclass that `parse` builds: an unknown key is an error."""

MOST_CHARACTERS = 60
"""Length at which a value is cut off in a message."""


@dataclass(frozen=True)
class Must:
    """Metadata of an annotation: what a value must be, in words and as a test.

    Numbers and truth values are taken as they are: no text or float passes for a whole number.
    `instance_of` replaces the annotated type where more types are allowed than the annotation says.
    """

    be: str
    holds: Callable[[Any], bool] = lambda _: True
    instance_of: tuple[type, ...] = ()

    def __get_pydantic_core_schema__(
        self, source: Any, handler: Callable[[Any], "CoreSchema"]
    ) -> "CoreSchema":
        """Validate by the annotated type and the test; both failures say the same."""
        from pydantic_core import PydanticCustomError, core_schema

        def check(value: Any, validate: Callable[[Any], Any]) -> Any:
            wrong = PydanticCustomError("must_be", "{expected}", {"expected": self.be})
            try:
                converted = validate(value)
            except ValueError:
                raise wrong from None
            if not self.holds(value):
                raise wrong
            return converted

        if self.instance_of:
            inner: Any = core_schema.is_instance_schema(self.instance_of, cls_repr=self.be)
        else:
            inner = handler(source)
            if inner["type"] in ("int", "float", "bool"):
                inner["strict"] = True
        return core_schema.no_info_wrap_validator_function(check, inner)


@dataclass(frozen=True)
class OneOf:
    """Metadata of an annotation: a name from a table, called `what` in messages."""

    what: str
    names: tuple[str, ...]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: Callable[[Any], "CoreSchema"]
    ) -> "CoreSchema":
        """Validate as a string first, then look it up."""
        from pydantic_core import core_schema

        def check(value: Any) -> Any:
            require_known(self.what, value, self.names)
            return value

        return core_schema.no_info_after_validator_function(check, handler(source))


@dataclass(frozen=True)
class Place:
    """Where values stand, for messages: their owner, and what its keys are called.

    `key_name` is what messages call a key, by default "'key' of owner". `located` puts the owner in
    front of messages that do not name it.
    """

    owner: str
    entry: str = "entry"
    key_name: Callable[[str], str] | None = None
    located: bool = True

    def named(self, key: str) -> str:
        """Return what messages call one of the owner's keys."""
        return self.key_name(key) if self.key_name else f"{key!r} of {self.owner}"


def check_fields(instance: Any, *, owner: str | None = None) -> None:
    """Validate a dataclass instance against the annotations of its fields.

    Args:
        instance: The instance; it is left as it is.
        owner: What messages call it; by default "a" and the name of its class.

    Raises:
        InputError: A field has a value that its annotation does not allow.
    """
    kind = cast("type[Any]", type(instance))
    values = {item.name: getattr(instance, item.name) for item in fields(instance)}
    place = Place(owner or f"a {kind.__name__}", entry="field", located=False)
    _validate(_fields_model(kind), values, lambda _: place, [item.name for item in fields(kind)])


def check_arguments(
    parameters: Mapping[str, tuple[Any, Any]], values: Mapping[str, Any], place: Place
) -> None:
    """Validate arguments by keyword, strictly: no value is converted into another type.

    Args:
        parameters: Annotation and default of each parameter.
        values: The arguments.
        place: Where they stand.

    Raises:
        InputError: A key is unknown, or a value is not what its annotation allows.
    """
    _validate(_arguments_model(tuple(parameters.items())), values, lambda _: place, [*parameters])


def parse(kind: type[T], values: Any, place_of: Callable[[Location], Place]) -> T:
    """Build a dataclass, and the dataclasses in it, from the values of a file.

    Args:
        kind: The dataclass; with `FORBID_UNKNOWN` as its `__pydantic_config__`.
        values: A mapping, as a TOML or JSON file gives it.
        place_of: What messages call the owner of the value at a location.

    Returns:
        An instance with all values converted to what the annotations say.

    Raises:
        InputError: A key is missing or unknown, or a value is not what its annotation allows.
    """
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_python(values)
    except ValidationError as error:
        raise InputError(_sentence(error, place_of, lambda at: _keys_at(kind, at))) from error


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
    given: dict[str, Any] = dict(parameters)
    return create_model("Values", __config__=config, **given)


def _validate(
    model: "type[BaseModel]",
    values: Mapping[str, Any],
    place_of: Callable[[Location], Place],
    keys: list[str],
) -> None:
    from pydantic import ValidationError

    try:
        model.model_validate(dict(values))
    except ValidationError as error:
        raise InputError(_sentence(error, place_of, lambda _: keys)) from error


UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")

EXPECTED: Mapping[str, str] = {
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
"""What a value must be, by pydantic's name of the error."""


def _sentence(
    error: "ValidationError",
    place_of: Callable[[Location], Place],
    keys_at: Callable[[Location], list[str]],
) -> str:
    """Return what is wrong first, as one sentence; an unknown key may be why another is missing."""
    errors = sorted(error.errors(), key=lambda one: one["type"] not in UNKNOWN)
    first = errors[0]
    place = place_of(first["loc"])
    located = f"{place.owner}: " if place.located else ""
    if first["type"] in UNKNOWN:
        key = str(first["loc"][-1])
        hint = suggestion(key, keys_at(first["loc"][:-1]))
        return f"{place.owner} takes no {place.entry} {key!r}; {hint}"
    if first["type"] == "missing":
        return f"{place.owner} needs {first['loc'][-1]!r}"
    if first["type"] == "value_error":  # a sentence of our own
        return f"{located}{first.get('ctx', {})['error']}"
    key, same = _alternatives(first, errors)
    names = [name for one in same for name in _literals(one)]
    others = list(dict.fromkeys(_expected(one) for one in same if not _literals(one)))
    if not others and isinstance(first["input"], str):
        return f"{located}there is no {key} {first['input']!r}; {suggestion(first['input'], names)}"
    *most, last = [*others, *map(repr, names)]
    expected = f"{', '.join(most)} or {last}" if most else last
    item = "an item of " if isinstance(first["loc"][-1], int) else ""
    return f"{item}{place.named(key)} must be {expected}, not {_shown(first['input'])}"


def _alternatives(
    first: "ErrorDetails", errors: "Sequence[ErrorDetails]"
) -> "tuple[str, list[ErrorDetails]]":
    """Return the key of a value, and one error for each type that its annotation allows.

    A union appends the name of a type to the location. Only settings have unions, and theirs is the
    first key; in a file the key is the last one.
    """
    strings = [k for k, part in enumerate(first["loc"]) if isinstance(part, str)]
    depth = 1 + (strings[0] if len(strings) == len(first["loc"]) else strings[-1])
    start = first["loc"][:depth]
    return str(start[-1]), [one for one in errors if one["loc"][:depth] == start]


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
    return EXPECTED.get(kind) or str(context.get("expected", error["msg"]))


def _shown(value: Any) -> str:
    plain = value is None or isinstance(value, bool | int | float | str | list | tuple | dict)
    text = repr(value) if plain else f"a {type(value).__name__}"
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


def _keys_at(kind: Any, location: Location) -> list[str]:
    """Return the keys that the table at a location takes."""
    for part in location:
        kind = get_args(kind)[0] if isinstance(part, int) else get_type_hints(kind)[part]
    return [item.name for item in fields(kind)] if is_dataclass(kind) else []
