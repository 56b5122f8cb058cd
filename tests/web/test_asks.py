"""What a request may ask."""

import json
from typing import Any

import pytest

from dmbp.errors import InputError
from dmbp.web.asks import LONGEST_TEXT, Ask, parse_ask

DIGEST = "0123456789abcdef" * 4


def test_an_ask_is_read() -> None:
    line = {"kind": "explain", "photo": DIGEST, "target": "cat", "rather_than": ["dog"]}
    assert parse_ask(json.dumps(line).encode()) == Ask(
        "explain", DIGEST, target="cat", rather_than=("dog",)
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\photos\\cat.jpg", "cat.jpg"),
        ("..", ".."),
        ("/", "photo"),
        ("<b>x</b>\n\x00", "b>"),
    ],
)
def test_the_name_of_a_photo_is_the_last_part_only(given: str, expected: str) -> None:
    name = parse_ask(json.dumps({"kind": "open", "name": given}).encode()).name
    assert name.startswith(expected)
    assert not set(name) & set("/\n\x00")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 10_000,
        b'{"kind": "delete"}',
        b'{"kind": ["open"]}',
        b'{"photo": null}',
        {"kind": "explain", "photo": "../../etc/passwd"},
        {"kind": "explain", "photo": DIGEST.upper()},
        {"kind": "explain", "file_system": "/"},
        {"kind": "explain", "target": 3},
        {"kind": "explain", "target": "x" * (LONGEST_TEXT + 1)},
        {"kind": "explain", "rather_than": "dog"},
        {"kind": "explain", "rather_than": ["dog"] * 9},
        {"kind": "region"},
        {"kind": "region", "region": "§"},
        {"kind": "region", "region": 5},
        {"kind": "file", "file": "exe"},
        {"kind": "method"},
    ],
)
def test_anything_else_is_refused_with_a_sentence(line: Any) -> None:
    with pytest.raises(InputError) as error:
        parse_ask(line if isinstance(line, bytes) else json.dumps(line).encode())
    assert len(str(error.value)) < 200
