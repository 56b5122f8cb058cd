"""Odd values, and ways to damage bytes and trees of values, drawn from a seeded `Random`."""

import copy
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

LONG = "n" * 300

TEXTS = (
    "",
    " ",
    "0",
    "-1",
    "1e20",
    "nan",
    "9" * 5000,
    "x" * 100_000,
    LONG,
    "a\0b",
    "line\nbreak",
    "\x1b[31mred",
    "caf\udce9",  # a byte that is not UTF-8, as Python reads it
    "\ufeff٣",
    "🐈‍⬛" * 40,
    r"$\nosuch$ $\frac{1}$ a$b$",
    "[bold]:star:[/nosuch]",
    "%s {0} {}",
    "../..",
    "~",
    "-",
    "--",
    "/dev/zero",
    "/dev/null/x",
    "/proc/self/mem",
    "pipe",
    "loop",
    "folder",
    "' OR 1=1; DROP TABLE rows; --",
)
"""Texts for every option, name and entry; the last paths are those of `files.odd_files`."""

INTEGERS = (0, 1, -1, 2, 7, 255, 4096, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**20, -(10**20))
FLOATS = (0.0, -0.0, 0.5, 1.0, -1.0, 1e-308, 1e308, float("nan"), float("inf"), float("-inf"))


def odd_value(rng: Random) -> Any:
    """Return something that a file's entry may hold by mistake or on purpose."""
    pools: tuple[Callable[[], Any], ...] = (
        lambda: rng.choice(TEXTS),
        lambda: rng.choice(INTEGERS),
        lambda: rng.choice(FLOATS),
        lambda: rng.choice((None, True, False, [], {}, [[]], {"": {}})),
        lambda: NESTED,
        lambda: [rng.choice(INTEGERS)] * rng.choice((1, 5, 3000)),
        lambda: {rng.choice(TEXTS): rng.choice(INTEGERS)},
    )
    return rng.choice(pools)()


NESTED = "@nested@"
"""Stands for thousands of lists in each other, which no encoder writes."""


def with_nested_lists(text: str) -> str:
    """Return encoded text, in JSON or TOML, with the lists that `NESTED` stands for."""
    return text.replace(f'"{NESTED}"', "[" * 5000 + "]" * 5000)


def damaged_tree(rng: Random, tree: Any) -> Any:
    """Return a copy of nested lists and dictionaries with one to three entries changed."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_places(tree))
        if places:
            rng.choice(TREE_DAMAGE)(rng, *rng.choice(places))
    return tree


def _places(tree: Any) -> Any:
    """Yield every container inside a tree with each of its keys."""
    waiting = [tree]
    while waiting:
        container = waiting.pop()
        is_list = isinstance(container, list)
        for key in range(len(container)) if is_list else list(container):
            yield container, key
            if isinstance(container[key], list | dict):
                waiting.append(container[key])


def _replace(rng: Random, container: Any, key: Any) -> None:
    container[key] = odd_value(rng)


def _remove(_: Random, container: Any, key: Any) -> None:
    del container[key]


def _rename(rng: Random, container: Any, key: Any) -> None:
    value = container.pop(key)
    if isinstance(container, dict):
        container[rng.choice(TEXTS)] = value


def _repeat(_: Random, container: Any, key: Any) -> None:
    if isinstance(container, list):
        container.append(copy.deepcopy(container[key]))


def _scale(rng: Random, container: Any, key: Any) -> None:
    """Make a number larger by a lot, or negative."""
    if isinstance(container[key], int) and not isinstance(container[key], bool):
        container[key] *= rng.choice((-1, 1000, 10**6, 2**40))


TREE_DAMAGE = (_replace, _replace, _remove, _rename, _repeat, _scale, _scale)


def damaged_bytes(rng: Random, content: bytes) -> tuple[bytes, str]:
    """Return bytes after one kind of damage, and the name of that kind."""
    name = rng.choice(list(BYTE_DAMAGE))
    return BYTE_DAMAGE[name](rng, content), name


def _cut(rng: Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _flip(rng: Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8, 64)) if changed else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _flip_header(rng: Random, content: bytes) -> bytes:
    """Flip bits where formats keep their sizes."""
    return _flip(rng, content[:64]) + content[64:]


def _overwrite(rng: Random, content: bytes) -> bytes:
    start = rng.randrange(len(content) + 1)
    length = rng.choice((1, 4, 8, 100))
    return content[:start] + rng.choice((b"\0", b"\xff", b"A")) * length + content[start + length :]


def _insert(rng: Random, content: bytes) -> bytes:
    start = rng.randrange(len(content) + 1)
    return content[:start] + rng.randbytes(rng.choice((1, 9, 300))) + content[start:]


def _double(rng: Random, content: bytes) -> bytes:
    start, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[:end] + content[start:]


BYTE_DAMAGE: Mapping[str, Callable[[Random, bytes], bytes]] = {
    "cut": _cut,
    "bits flipped": _flip,
    "header flipped": _flip_header,
    "overwritten": _overwrite,
    "bytes inserted": _insert,
    "part doubled": _double,
    "empty": lambda _, __: b"",
    "noise": lambda rng, content: rng.randbytes(min(len(content), 4000)),
}
"""Ways to damage a file whose format is unknown."""
