"""Validation: a wrong value gets one sentence, with its place and the name that was meant."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from torch import Tensor

from dmbp.errors import InputError
from dmbp.validation import (
    FORBID_UNKNOWN,
    Constraint,
    ErrorContext,
    Location,
    OneOf,
    check_arguments,
    check_fields,
    parse,
)

Count = Annotated[int, Constraint("a whole number from 1", lambda number: number >= 1)]


@dataclass(frozen=True)
class Shelf:
    name: str
    path: Path
    kinds: tuple[Annotated[str, OneOf("kind", ("novel", "poem"))], ...] = ("novel",)
    first: Count | None = None

    __pydantic_config__ = FORBID_UNKNOWN

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.kinds:
            raise InputError("a shelf needs a kind")


@dataclass(frozen=True)
class Library:
    shelves: tuple[Shelf, ...]
    owners: dict[str, str] = field(default_factory=dict)

    __pydantic_config__ = FORBID_UNKNOWN


def context_of(location: Location) -> ErrorContext:
    return ErrorContext(f"shelf {location[1]}" if len(location) > 1 else "the library")


def test_values_are_converted() -> None:
    shelf = {"name": "a", "path": "b", "kinds": ["poem"], "first": 2}
    library = parse(Library, {"shelves": [shelf]}, context_of)
    assert library == Library((Shelf("a", Path("b"), ("poem",), 2),))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"first": 0}, "'first' of shelf 0 must be a whole number from 1, not 0"),
        ({"first": "two"}, "'first' of shelf 0 must be a whole number from 1, not 'two'"),
        ({"first": 2.0}, "'first' of shelf 0 must be a whole number from 1, not 2.0"),
        ({"first": True}, "'first' of shelf 0 must be a whole number from 1, not True"),
        ({"kinds": ["pome"]}, "shelf 0: there is no kind 'pome'; did you mean 'poem'?"),
        ({"kinds": [3]}, "an item of 'kinds' of shelf 0 must be a string, not 3"),
        ({"kinds": "poem"}, "'kinds' of shelf 0 must be a list, not 'poem'"),
        ({"kinds": []}, "shelf 0: a shelf needs a kind"),
        ({"path": 3}, "'path' of shelf 0 must be a path, not 3"),
        ({"frist": 3}, "shelf 0 takes no entry 'frist'; did you mean 'first'?"),
        ({"name": ["long"] * 30}, "'name' of shelf 0 must be a string, not ['long', "),
    ],
)
def test_a_wrong_value_in_a_file(change: dict[str, Any], sentence: str) -> None:
    shelf = {"name": "a", "path": "b", **change}
    with pytest.raises(InputError) as error:
        parse(Library, {"shelves": [shelf]}, context_of)
    assert str(error.value).startswith(sentence)
    assert len(str(error.value)) < 120


def test_missing_and_misspelled_keys() -> None:
    with pytest.raises(InputError, match=r"^shelf 0 needs 'path'$"):
        parse(Library, {"shelves": [{"name": "a"}]}, context_of)
    with pytest.raises(InputError, match=r"^the library takes no entry 'shelfs'; did you mean"):
        parse(Library, {"shelfs": []}, context_of)  # rather than that shelves are missing


def test_an_instance_built_in_code() -> None:
    with pytest.raises(InputError, match=r"^'first' of a Shelf must be a whole number from 1"):
        Shelf("a", Path("b"), first=0)
    with pytest.raises(InputError, match=r"^there is no kind 'pome'"):
        Shelf("a", Path("b"), ("pome",))


PARAMETERS: dict[str, tuple[Any, Any]] = {
    "steps": (int, 50),
    "noise": (float, 0.1),
    "signed": (bool, False),
    "mode": (Literal["all", "some"] | None, None),
    "reference": (Tensor | Literal["blur", "mean"] | None, None),
}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"steps": "x"}, "'steps' of grad must be a whole number, not 'x'"),
        ({"steps": True}, "'steps' of grad must be a whole number, not True"),
        ({"noise": float("nan")}, "'noise' of grad must be a number, not nan"),
        ({"signed": 1}, "'signed' of grad must be True or False, not 1"),
        ({"mode": "sme"}, "grad: there is no mode 'sme'; did you mean 'some'?"),
        ({"mode": 3}, "'mode' of grad must be 'all' or 'some', not 3"),
        ({"reference": "blurr"}, "'reference' of grad must be a Tensor, 'blur' or 'mean', not"),
        ({"stpes": 3}, "grad takes no setting 'stpes'; did you mean 'steps'?"),
    ],
)
def test_arguments_against_a_signature(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as error:
        check_arguments(PARAMETERS, values, ErrorContext("grad", "setting"))
    assert str(error.value).startswith(sentence)


def test_arguments_that_are_right() -> None:
    values = {"steps": 3, "noise": 1, "signed": True, "mode": "all", "reference": None}
    check_arguments(PARAMETERS, values, ErrorContext("grad"))
