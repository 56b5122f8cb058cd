"""Photos: every format that Pillow writes, damaged, far too large, or not a file at all."""

import os
import socket
import struct
import zlib
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from random import Random

import numpy
from PIL import Image

from tests.fuzz.case import FAST, MODEL, Case, Stock
from tests.fuzz.damage import damaged_bytes

MODES = ("RGB", "L", "1", "P", "RGBA", "LA", "CMYK", "YCbCr", "I", "I;16", "F", "LAB", "HSV")

Image.init()
FORMATS = sorted(Image.SAVE)
READ_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP")


def make_photo_case(rng: Random, folder: Path, stock: Stock) -> Case:
    """Return a command about one to three photos, or a folder of them."""
    photos = folder / "photos"
    photos.mkdir()
    notes = [_write_photo(rng, photos, number) for number in range(rng.choice((1, 1, 1, 2, 3)))]
    names = sorted(os.listdir(photos))
    whole = rng.random() < 0.2
    paths = ["photos"] if whole else [f"photos/{name}" for name in names]
    return Case([*_command(rng, paths), "--model", MODEL], "; ".join(notes))


def _command(rng: Random, paths: list[str]) -> list[str]:
    draw = rng.random()
    if draw < 0.85:
        extras = ([], ["--raw"], ["--report"], ["--quiet"], ["--gif"])  # a GIF takes seconds
        (extra,) = rng.choices(extras, (20, 4, 4, 4, 1))
        return ["explain", *paths, *FAST, *extra]
    if draw < 0.93:
        return ["compare", paths[0], "--methods", "gradient"]
    return ["sanity", paths[0], "--methods", "gradient", "--draws", "1"]


def _write_photo(rng: Random, folder: Path, number: int) -> str:
    name = rng.choice(list(PHOTOS))
    suffix = rng.choice((".jpg", ".png", ".tif", ".webp", ".gif", ".bmp", ".JPG"))
    note = PHOTOS[name](rng, folder / f"{number}{suffix}")
    return f"{name}, {note}" if note else name


def _noise(rng: Random, mode: str, size: tuple[int, int]) -> Image.Image:
    """Return noise in a mode; those with numbers may hold any."""
    width, height = size
    if mode in ("I", "F", "I;16"):
        kind = {"I": numpy.int32, "F": numpy.float32, "I;16": numpy.uint16}[mode]
        values = numpy.frombuffer(rng.randbytes(width * height * numpy.dtype(kind).itemsize), kind)
        return Image.fromarray(values.reshape(height, width))
    grey = Image.frombytes("RGB", size, rng.randbytes(width * height * 3))
    return grey.convert("RGB" if mode in ("LAB", "HSV") else mode)


def _side(rng: Random) -> int:
    return rng.choice((1, 15, 16, 17, 31, 40, 40, 64, 64, 200))


def encoded(rng: Random, kind: str) -> bytes:
    """Return noise in a format of Pillow's, in a mode that the format takes."""
    for mode in rng.sample(MODES, len(MODES)):
        buffer = BytesIO()
        size = _side(rng), _side(rng)
        try:
            _noise(rng, mode, size).save(buffer, kind, **_settings(rng, kind))
        except Exception:  # this format does not take this mode or size
            continue
        return buffer.getvalue()
    return b""


def _settings(rng: Random, kind: str) -> dict[str, object]:
    more = [Image.new("RGB", (20, 20), "red")] * rng.choice((1, 3))
    frames = {"save_all": True, "append_images": more}
    options: Mapping[str, list[dict[str, object]]] = {
        "JPEG": [{}, {"quality": 1}, {"progressive": True}, {"exif": rng.randbytes(30)}],
        "PNG": [{}, {"dpi": (0, 1e9)}, frames],
        "GIF": [{}, frames, {"transparency": 3}],
        "TIFF": [
            {},
            frames,
            {"compression": rng.choice(("tiff_lzw", "jpeg", "packbits", "tiff_deflate"))},
        ],
        "WEBP": [{}, {"lossless": True}, frames],
    }
    return rng.choice(options.get(kind, [{}]))


def _ordinary(rng: Random, path: Path) -> str:
    kind = rng.choice(FORMATS)
    path.write_bytes(encoded(rng, kind))
    return kind


def _damaged(rng: Random, path: Path) -> str:
    kind = rng.choice(READ_FORMATS if rng.random() < 0.8 else FORMATS)
    content, damage = damaged_bytes(rng, encoded(rng, kind))
    path.write_bytes(content)
    return f"{kind} {damage}"


def _png(width: int, height: int, body: bytes, depth: int = 8, colour: int = 2) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", body), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def _declared_size(rng: Random, path: Path) -> str:
    """A header that claims another size than the pixels have."""
    sides = (0, 1, 16, 100, 7000, 60_000, 2**31 - 1, 2**32 - 1)
    width, height = rng.choice(sides), rng.choice(sides)
    depth, colour = rng.choice((1, 2, 4, 8, 16)), rng.choice((0, 2, 3, 4, 6))
    body = zlib.compress(bytes(rng.choice((0, 100, 10**6))))
    path.write_bytes(_png(width, height, body, depth, colour))
    return f"{width}×{height}"


def _bomb(rng: Random, path: Path) -> str:
    """Few bytes, many pixels: just below the limits, or far above them."""
    width, height = rng.choice(((7900, 7900), (8100, 8000), (16, 9_000_000), (20_000, 20_000)))
    colour = rng.choice((0, 0, 2))
    line = b"\0" * (1 + (width + 7) // 8 if not colour else 1 + 3 * width)
    packer = zlib.compressobj(9)
    block = line * max(1, 10_000_000 // len(line))
    left, body = len(line) * height, b""
    while left > 0:
        body += packer.compress(block[:left])
        left -= len(block)
        if len(body) > 50_000:
            break
    path.write_bytes(_png(width, height, body + packer.flush(), 8 if colour else 1, colour))
    return f"{width}×{height}"


def _aspect(rng: Random, path: Path) -> str:
    size = (rng.choice((1, 16, 17)), rng.choice((800, 851, 5000, 60_000)))
    Image.new(rng.choice(("1", "L")), size if rng.random() < 0.5 else size[::-1]).save(path, "PNG")
    return f"{size}"


def _not_finite(rng: Random, path: Path) -> str:
    values = numpy.full((20, 24), rng.choice((numpy.nan, numpy.inf, 3e38)), numpy.float32)
    values[: rng.randrange(20)] = -3e38
    Image.fromarray(values).save(path, "TIFF")
    return ""


def _frames(rng: Random, path: Path) -> str:
    first = Image.new("P", (20, 20))
    many = [Image.new("P", (rng.choice((1, 20)), 20), k % 250) for k in range(300)]
    first.save(path, "GIF", save_all=True, append_images=many)
    return "300 frames"


def _text(rng: Random, path: Path) -> str:
    """A file of another kind, such as a script for a program that Pillow would run."""
    contents = (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n(touch executed) run\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.4\n",
        b"PK\x03\x04",
        b"\0" * 5000,
        b"\xff\xd8\xff" * 50,
        b"GIF89a",
        b"II*\0\x08\0\0\0\xff\xff",
    )
    path.write_bytes(rng.choice(contents))
    return ""


def _special(rng: Random, path: Path) -> str:
    kind = rng.choice(list(SPECIAL))
    SPECIAL[kind](path)
    return kind


def _socket(path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket has at most 107 bytes
    try:
        listener.bind(path.name)
    finally:
        os.chdir(here)
        listener.close()


def _sparse(path: Path) -> None:
    """A terabyte that takes no room."""
    path.touch()
    os.truncate(path, 2**40)


SPECIAL: Mapping[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "loop": lambda path: path.symlink_to(path.name),
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "folder": Path.mkdir,
    "/dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "/dev/null": lambda path: path.symlink_to("/dev/null"),
    "/proc/self/mem": lambda path: path.symlink_to("/proc/self/mem"),
    "/proc/kmsg": lambda path: path.symlink_to("/proc/kmsg"),
    "socket": _socket,
    "sparse file": _sparse,
}


def _odd_name(rng: Random, path: Path) -> str:
    names = (
        b"caf\xe9.jpg",
        b"n" * 251 + b".jpg",
        "ü".encode() * 120 + b".png",
        b" .jpg",
        b"-.jpg",
        b"$\\nosuch$.jpg",
        b"[red]:star:.jpg",
        b"line\nbreak.jpg",
        b"\x1b[31m.jpg",
        b"%s{0}.jpg",
        b".jpg",
        b"<script>.jpg",
    )
    name = rng.choice(names)
    content = encoded(rng, rng.choice(READ_FORMATS))
    (path.parent / os.fsdecode(name)).write_bytes(content)
    return repr(name[:20])


PHOTOS: Mapping[str, Callable[[Random, Path], str]] = {
    "ordinary": _ordinary,
    "damaged": _damaged,
    "damaged again": _damaged,
    "damaged once more": _damaged,
    "declared size": _declared_size,
    "bomb": _bomb,
    "aspect": _aspect,
    "not finite": _not_finite,
    "frames": _frames,
    "another kind": _text,
    "special file": _special,
    "odd name": _odd_name,
}
"""Ways to write a photo to a path; each returns what it drew."""
