"""Targets as text, for models of every kind of outputs; masks, photos to compare, and prompts."""

import base64
import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import numpy
from PIL import Image

from tests.fuzz.case import FAST, Case, Stock
from tests.fuzz.damage import FLOATS, INTEGERS, TEXTS, damaged_bytes
from tests.fuzz.photos import PHOTOS

NETWORKS: Mapping[str, tuple[str, ...]] = {
    "good": ("class:cat", "margin:cat>dog", "margin:dog>rivals", "cat", "value:2", "1*class:cat"),
    "quarter_maps": (
        *("region:cat", "region:dog@box=5,5,30,30", "region:@point=30,20", "cat", "value:0,1,1"),
        *("region:cat@mask=mask.png", "region:sky@mask=photo.png", "1*region:cat + -1*region:dog"),
    ),
    "segmenter": ("region:", "region:1@box=0,0,9,9", "region:0@mask=mask.png"),
    "detector": ("box:0", "box:dog", "box:cat@near=30,20", "box:@near=3,2", "value:0,0", "0"),
    "reader": ("step:3=b", "step:0", "step:#0", "step:#1=a", "value:1,2"),
    "regression": ("value:1", "2*value:0 + -1*value:2", "value:0"),
    "encoder": ("similarity:prompt=a tree", "similarity:image=photo.png", "value:3"),
    "tangled": ("value:0,0,0,0", "value:1"),
    "yes_no": ("class:0", "0", "value:0", "step:0"),
}
"""Networks of every kind of outputs, with targets that are right for them."""

EXTRAS = (
    *([[]] * 6),
    ["--whole-photo"],
    ["--whole-photo", "--raw"],
    ["--report"],
    ["--gif"],
    ["--rather-than", "dog"],
    ["--rather-than", "rivals"],
    ["--prompt", "a cat"],
    ["--prompt", ""],
    ["--prompt", "🐈" * 3000],
    ["--bands", "1,2,3"],
)


def make_target_case(rng: Random, folder: Path, stock: Stock) -> Case:
    """Return a command with one to three targets, or one that lists boxes."""
    network = rng.choice(list(NETWORKS))
    shutil.copy(stock.path("photo.png"), folder)
    note = _write_mask(rng, folder / "mask.png")
    photo = "photo.png"
    if rng.random() < 0.2:
        (folder / "odd").mkdir()
        photo = "odd/0.png"
        kind = rng.choice(("ordinary", "damaged", "bomb", "aspect", "special file"))
        note = PHOTOS[kind](rng, folder / photo) + note
    model = ["--model", f"tests.cli.networks:{network}"]
    if rng.random() < 0.15:
        colours = rng.choice(([], ["--picture", "svg"], ["--quiet"], ["--out", "pipe"]))
        return Case(["boxes", photo, *model, *colours], note)
    texts = [rng.choice(NETWORKS[network])]
    if rng.random() < 0.85:
        kind = rng.choice(list(HOSTILE))
        texts[0], note = HOSTILE[kind](rng, texts[0]), f"{kind} {note}"
    if rng.random() < 0.2:
        texts.append(rng.choice(NETWORKS[rng.choice(list(NETWORKS))]))
    targets = [word for text in texts for word in ("--target", text)]
    if rng.random() < 0.8:
        return Case(["explain", photo, *model, *targets, *FAST, *rng.choice(EXTRAS)], note)
    if rng.random() < 0.5:
        return Case(["compare", photo, *model, *targets, "--methods", "gradient"], note)
    more = ["--methods", "gradient", "--draws", "1"]
    return Case(["sanity", photo, *model, *targets, *more], note)


def _write_mask(rng: Random, path: Path) -> str:
    """A mask that may have another size than the photo, be damaged, or be no file."""
    draw = rng.choice(("whole", "small", "empty", "full", "damaged", *PHOTOS, "table", "array"))
    if draw in PHOTOS:
        return f"mask {draw} {PHOTOS[draw](rng, path)}"
    size = rng.choice(((32, 32), (16, 16), (40, 36), (400, 18))) if draw == "small" else (40, 36)
    mask = Image.new("L", size, 255 if draw == "full" else 0)
    if draw != "empty":
        mask.paste(255, (3, 3, 14, 14))
    mask.save(path)
    if draw == "damaged":
        path.write_bytes(damaged_bytes(rng, path.read_bytes())[0])
    elif draw == "array":
        with path.open("wb") as file:
            numpy.save(file, numpy.ones((36, 40)))
    elif draw == "table":
        path.write_text("0,1\n1,0\n")
    return f"mask {draw}"


def _characters(rng: Random, text: str) -> str:
    """Characters left out, repeated or put in."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(text) + 1)
        put = rng.choice((":", "@", "=", ",", ">", "#", "*", " + ", "-", ".", "e", "\0", "٣", " "))
        text = rng.choice((text[:at] + text[at + 1 :], text[:at] + put + text[at:], text[:at] * 2))
    return text


def _number(rng: Random, text: str) -> str:
    """One of its numbers replaced, or a number at its end."""
    number = str(rng.choice((*INTEGERS, *FLOATS, "9" * 5000, "1e9", "1_0", "٣", "0x1", "", "-0")))
    places = [at for at, character in enumerate(text) if character.isdigit()]
    if not places:
        return text + number
    at = rng.choice(places)
    return text[:at] + number + text[at + 1 :]


def _odd_text(rng: Random, text: str) -> str:
    """Anything after the colon, or in place of a class."""
    kind, colon, _ = text.partition(":")
    return f"{kind}{colon or ':'}{rng.choice(TEXTS)}"


def _sum(rng: Random, text: str) -> str:
    """Sums with odd weights, of one target or of thousands."""
    weight = rng.choice(("1", "0", "-1", "nan", "1e308", "1e-308", "1e9999", "", "x", "1*1", "inf"))
    count = rng.choice((1, 2, 2, 3, 300))
    return " + ".join([f"{weight}*{text}"] * count + rng.choice(([], [text], [""], [" + "])))


def _packed_mask(rng: Random, _: str) -> str:
    """A mask inside the text: of another size than it says, bits that unpack to gigabytes."""
    size = rng.choice(
        ("36x40", "32x32", "4096x4096", "99999x99999", "0x0", "1x0", "8x8", "x", "3x")
    )
    content = rng.choice((b"\xff" * 180, b"", b"\0" * 180, bytes(2**27), rng.randbytes(180)))
    packed = base64.b64encode(zlib.compress(content)).decode()[: 2**17 - 100]
    if rng.random() < 0.3:
        packed = damaged_bytes(rng, packed.encode())[0].decode("ascii", "surrogateescape")
    return f"region:{rng.choice(('cat', '', '1'))}@mask={size}:{packed}".replace("\0", "0")


def _embedding(rng: Random, _: str) -> str:
    numbers = rng.choice(([1.0] * 16, [1.0] * 3, [], [0.0] * 16, [float("nan")] * 16, [3e38] * 16))
    packed = base64.b64encode(numpy.array(numbers, numpy.float32).tobytes()).decode()
    return f"similarity:embedding={rng.choice((packed, packed[:-3], packed + 'x', 'é'))}"


def _file(rng: Random, _: str) -> str:
    """A file that is no photo, in place of a mask or of a photo to compare with."""
    name = rng.choice(
        ("pipe", "loop", "folder", "/dev/zero", "gone.png", "n" * 300, "mask.png", "-")
    )
    return rng.choice(("region:cat@mask=", "region:0@mask=", "similarity:image=")) + name


HOSTILE: Mapping[str, Callable[[Random, str], str]] = {
    "characters": _characters,
    "characters again": _characters,
    "number": _number,
    "number again": _number,
    "odd text": _odd_text,
    "sum": _sum,
    "packed mask": _packed_mask,
    "embedding": _embedding,
    "file": _file,
    "any": lambda rng, _: rng.choice(TEXTS),
}
"""Ways to change a target's text."""
