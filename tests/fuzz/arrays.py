"""Inputs that are no photos: arrays, tables, scans and deep pictures, damaged or absurd.

NIfTI and DICOM files are written here byte by byte, so that they are tried with and without the
packages that read them.
"""

import gzip
import io
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import numpy
from PIL import Image

from tests.fuzz.case import FAST, MARK, Case, Stock
from tests.fuzz.damage import FLOATS, TEXTS, damaged_bytes
from tests.fuzz.networks import BANDS, CHANNELS, FEATURES
from tests.fuzz.photos import SPECIAL
from tests.models.program.tampering import Payload

HERE = "tests.fuzz.networks"

SHAPES: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "volumes": ((12, 10, 11), (1, 12, 10, 11), (1, 1, 12, 10, 11)),
    "signals": ((CHANNELS, 64), (1, CHANNELS, 64)),
    "tables": ((FEATURES,), (3, FEATURES), (1, FEATURES)),
    "bands": ((BANDS, 20, 24), (1, BANDS, 20, 24)),
}
"""What each of the networks takes."""

ODD_SHAPES = ((), (0,), (0, 3), (1,), (2**40, 2**20), (-1, 4), (1,) * 9, (300, 300, 300), (7, 7))
DTYPES = (
    "<f4",
    ">f4",
    "<f8",
    "<f2",
    "|u1",
    "<i8",
    "|b1",
    "<c8",
    "|S4",
    "<U3",
    "<M8[s]",
    "|O",
    "<f16",
)
EXTRAS = (
    *([[]] * 6),
    ["--raw"],
    ["--report"],
    ["--terms"],
    ["--gif"],
    ["--whole-photo"],
    ["--bands", "3,2,1"],
    ["--bands", "0"],
    ["--bands", "1,99,1"],
    ["--bands", "99999999999"],
    ["--target", "2"],
    ["--target", "value:0"],
    ["--mean", "0.5"],
    ["--size", "32"],
)


def make_array_case(rng: Random, folder: Path, stock: Stock) -> Case:
    """Return a command about an input that is no photo."""
    network = rng.choice(list(SHAPES))
    way = rng.choice(list(ARRAYS))
    endings, write = ARRAYS[way]
    path = folder / f"input{rng.choice(endings)}"
    note = write(rng, path, network)
    model = ["--model", f"{HERE}:{network}"]
    photo = str(stock.path("photo.png"))
    commands = (
        *(["explain", path.name, *model, *FAST, *rng.choice(EXTRAS)] for _ in range(12)),
        ["explain", path.name, photo, "--model", "tests.cli.networks:good", *FAST],
        ["compare", path.name, *model, "--methods", "gradient"],
        ["boxes", path.name, "--model", "tests.cli.networks:detector"],
        ["doctor", str(stock.path("net.onnx")), "--hold", f"images={path.name}"],
        ["explain", photo, "--model", str(stock.path("dynamic.onnx")), "--hold", f"x={path.name}"],
    )
    return Case(rng.choice(commands), f"{way} {note}".strip())


def _numbers(rng: Random, network: str) -> numpy.ndarray:
    shape = rng.choice(SHAPES[network])
    generator = numpy.random.default_rng(rng.randrange(2**32))
    return generator.normal(size=shape).astype(numpy.float32)


def _saved(values: object, **options: bool) -> bytes:
    buffer = io.BytesIO()
    numpy.save(buffer, values, **options)
    return buffer.getvalue()


def _ordinary(rng: Random, path: Path, network: str) -> str:
    """Numbers of any type, in any order in memory."""
    values = _numbers(rng, network)
    dtype = rng.choice(("float32", "float64", "float16", ">f4", "int16", "uint8", "bool"))
    order = rng.choice(("C", "F"))
    path.write_bytes(_saved(numpy.asarray(values.astype(dtype), order=order)))
    return f"{dtype} {order}"


def _damaged_array(rng: Random, path: Path, network: str) -> str:
    content, damage = damaged_bytes(rng, _saved(_numbers(rng, network)))
    path.write_bytes(content)
    return damage


def _header(rng: Random, path: Path, network: str) -> str:
    """A header that claims anything, before few bytes or none."""
    shape, dtype = rng.choice((*ODD_SHAPES, *SHAPES[network])), rng.choice(DTYPES)
    fields = (
        f"'descr': {dtype!r}, 'fortran_order': {rng.choice((True, False, 3))}, 'shape': {shape}",
        f"'descr': {dtype!r}, 'fortran_order': False, 'shape': {'(' * 500}3{')' * 500}",
        f"'descr': [('a', '<f4'), ('b', '|O')], 'fortran_order': False, 'shape': {shape}",
        "'descr': __import__('os').system('touch executed'), 'shape': (2,)",
        f"'shape': ({'9' * 6000},), 'descr': '<f4', 'fortran_order': False",
        f"'descr': '|V0', 'fortran_order': False, 'shape': {shape}",
    )
    text = f"{{{rng.choice(fields[:1] * 4 + fields)}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    version = rng.choice((1, 1, 1, 2, 3, 9))
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    start = b"\x93NUMPY" + bytes((version, 0)) + length + text
    path.write_bytes(start + rng.randbytes(rng.choice((0, 4, 1000, 20_000))))
    return f"{shape} {dtype}"


def _not_finite(rng: Random, path: Path, network: str) -> str:
    values = _numbers(rng, network).astype(numpy.float64)
    number = rng.choice((*FLOATS, 3e38, 1e-40, 1e30))
    values.ravel()[: rng.choice((1, values.size))] = number
    path.write_bytes(_saved(values))
    return str(number)


def _objects(rng: Random, path: Path, _: str) -> str:
    """Objects that would be unpickled, in an array or in place of one."""
    payload = Payload(path.parent / MARK)
    draw = rng.randrange(3)
    if draw == 0:
        path.write_bytes(_saved(numpy.array([payload, 1], dtype=object), allow_pickle=True))
    elif draw == 1:
        path.write_bytes(pickle.dumps(payload))
    else:
        with zipfile.ZipFile(path, "w") as archive:  # what numpy.savez writes
            content = _saved(numpy.array([payload], dtype=object), allow_pickle=True)
            archive.writestr("arr_0.npy", content)
    return str(draw)


def _zip(rng: Random, path: Path, network: str) -> str:
    with path.open("wb") as file:
        numpy.savez(file, _numbers(rng, network))
    return ""


CELLS = ("", "nan", "inf", "-1e400", "1e30", "٣", "1_000", "0x10", "9" * 5000, "cat", '"', "1;2")


def _table(rng: Random, path: Path, network: str) -> str:
    width = {"tables": FEATURES, "signals": CHANNELS}.get(network, rng.choice((1, 3, 40)))
    rows = [
        [f"{rng.random():.3g}" for _ in range(width)] for _ in range(rng.choice((1, 2, 31, 64)))
    ]
    draw = rng.choice(("ordinary", "names", "cell", "ragged", "bytes", "odd", "wide", "long"))
    if draw == "names":
        rows.insert(0, [rng.choice(TEXTS)[:200] or "x" for _ in range(width)])
    elif draw == "cell":
        rng.choice(rows)[rng.randrange(width)] = rng.choice((*CELLS, *TEXTS))
    elif draw == "ragged":
        rng.choice(rows).append("1")
    elif draw == "wide":
        rows = [["1"] * 100_000]
    elif draw == "long":
        rows *= 1000
    separator = "\t" if path.suffix == ".tsv" else rng.choice(",;\t ")
    content = "\n".join(separator.join(row) for row in rows).encode(errors="surrogateescape")
    if draw == "bytes":
        content, draw = damaged_bytes(rng, content)
    elif draw == "odd":
        content = rng.choice(
            (b'"' * 999, b"\0" * 99, b"," * 9999, b"1\r2\r3", "1,2".encode("utf-16"))
        )
    path.write_bytes(content)
    return draw


def _many_commas(rng: Random, path: Path, _: str) -> str:
    """Megabytes that become hundreds of megabytes as Python's numbers."""
    count = rng.choice((2**18, 2**20, 2**22, 2**25))
    path.write_bytes(rng.choice((b"1,", b"1\n", b",", b"\n")) * count + b"1\n")
    return str(count)


NIFTI_TYPES = {2: 1, 4: 2, 8: 4, 16: 4, 64: 8, 32: 8, 128: 3, 1: 1, 0: 4, 1536: 16, 999: 4}
"""The codes of numbers, and their bytes; some are complex or colours, and the last is none."""


def nifti(
    rng: Random, *, sides: tuple[int, ...], slope: float = 1.0, offset: float = 352.0
) -> bytes:
    """Return a NIfTI file whose header claims some sides."""
    code = rng.choice((16, 16, 16, *NIFTI_TYPES))
    header = bytearray(348)
    struct.pack_into("<i", header, 0, 348)
    dims = [len(sides), *sides, *[1] * 7][:8]
    struct.pack_into("<8h", header, 40, *(max(-(2**15), min(d, 2**15 - 1)) for d in dims))
    struct.pack_into("<2h", header, 70, code, 8 * NIFTI_TYPES[code])
    struct.pack_into("<8f", header, 76, *[1.0] * 8)
    struct.pack_into("<3f", header, 108, offset, slope, 0.0)
    header[344:348] = b"n+1\0"
    count = min(NIFTI_TYPES[code] * max(0, int(numpy.prod(sides, dtype=float))), 2**16)
    return bytes(header) + bytes(4) + rng.randbytes(count)


def _nifti(rng: Random, path: Path, _: str) -> str:
    draw = rng.choice(("ordinary", "ordinary", "sides", "slope", "offset", "bytes", "extension"))
    sides: tuple[int, ...] = (11, 10, 12)
    content = nifti(rng, sides=sides)
    if draw == "sides":
        count = rng.randrange(8)
        sides = tuple(rng.choice((0, 1, -1, 3, 400, 2**15 - 1)) for _ in range(count))
        content = nifti(rng, sides=sides)
    elif draw == "slope":
        content = nifti(rng, sides=sides, slope=rng.choice(FLOATS[:5] + FLOATS[7:]))
    elif draw == "offset":
        content = nifti(rng, sides=sides, offset=rng.choice((0.0, -1.0, 1e9, 3e38, float("nan"))))
    elif draw == "bytes":
        content, draw = damaged_bytes(rng, content)
    elif draw == "extension":  # two gigabytes beside the header
        content = content[:348] + struct.pack("<4b2i", 1, 0, 0, 0, 2**31 - 16, 6) + content[352:]
    if path.name.endswith(".gz"):
        content = gzip.compress(content + bytes(rng.choice((0, 0, 2**28))), 1)
        if rng.random() < 0.2:
            content, _ = damaged_bytes(rng, content)
    path.write_bytes(content)
    return f"{draw} {sides}"


def element(group: int, number: int, kind: str, value: bytes, length: int | None = None) -> bytes:
    """Return an element of a DICOM file with explicit kinds of values."""
    length = len(value) if length is None else length
    if kind in ("OB", "OW", "SQ", "UN", "OF"):
        return (
            struct.pack("<2H", group, number)
            + kind.encode()
            + struct.pack("<HI", 0, length)
            + value
        )
    return struct.pack("<2H", group, number) + kind.encode() + struct.pack("<H", length) + value


def _text(value: str, fill: bytes = b" ") -> bytes:
    return value.encode() + (fill if len(value) % 2 else b"")


PLAIN = "1.2.840.10008.1.2.1"
SYNTAXES = (
    *("1.2.840.10008.1.2", "1.2.840.10008.1.2.2", "1.2.840.10008.1.2.5", "1.2.3", ""),
    *("1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.90"),
)
DEFLATED = "1.2.840.10008.1.2.1.99"


def dicom(rng: Random, *, odd: bool, syntax: str) -> tuple[bytes, bytes]:
    """Return what a DICOM file begins with, and the rest, which a syntax may deflate.

    An odd one claims something else than it holds.
    """
    meta = element(2, 1, "OB", b"\0\1")
    meta += element(2, 2, "UI", _text("1.2.840.10008.5.1.4.1.1.2", b"\0"))
    meta += element(2, 16, "UI", _text(syntax, b"\0"))
    start = bytes(128) + b"DICM" + element(2, 0, "UL", struct.pack("<I", len(meta))) + meta
    frames, rows, columns, samples, bits = "12", 10, 11, 1, 16
    if odd:
        frames = rng.choice(("12", "0", "-3", "9" * 12, "cat", ""))
        rows, columns = rng.choice((0, 1, 10, 65535)), rng.choice((0, 11, 65535))
        samples, bits = rng.choice((0, 1, 3, 9)), rng.choice((0, 1, 8, 16, 32, 64, 7))
    body = element(0x28, 2, "US", struct.pack("<H", samples))
    body += element(0x28, 4, "CS", _text(rng.choice(("MONOCHROME2", "RGB", "PALETTE COLOR", "x"))))
    body += element(0x28, 8, "IS", _text(frames))
    body += element(0x28, 0x10, "US", struct.pack("<H", rows))
    body += element(0x28, 0x11, "US", struct.pack("<H", columns))
    for number, value in ((0x100, bits), (0x101, bits), (0x102, max(0, bits - 1)), (0x103, 1)):
        body += element(0x28, number, "US", struct.pack("<H", value))
    if odd or rng.random() < 0.5:
        slope = rng.choice(("2", "0", "nan", "1e400", "cat", "", "1\\2"))
        body += element(0x28, 0x1053, "DS", _text(slope if odd else "2"))
    length = rng.choice((None, None, 2**32 - 1, 2**31, 3)) if odd else None
    pixels = rng.randbytes(2 * 12 * 10 * 11)
    return start, body + element(0x7FE0, 0x10, "OW", pixels, length)


def _dicom(rng: Random, path: Path, _: str) -> str:
    draw = rng.choice(("ordinary", "ordinary", "odd", "odd", "syntax", "deflated", "bytes", "bomb"))
    syntax = rng.choice(SYNTAXES) if draw == "syntax" else PLAIN
    syntax = DEFLATED if draw in ("deflated", "bomb") else syntax
    start, body = dicom(rng, odd=draw == "odd", syntax=syntax)
    if draw == "deflated":
        body = zlib.compress(body, 9)[2:-4]
    elif draw == "bomb":  # a few megabytes that unpack to gigabytes
        body = deflated_zeros(body, 2**32)
    content = start + body
    if draw == "bytes":
        content, draw = damaged_bytes(rng, content)
    path.write_bytes(content)
    return f"{draw} {syntax}"


def deflated_zeros(start: bytes, count: int) -> bytes:
    """Return bytes and then zeros, deflated, without ever holding the zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = bytes(2**20)
    blocks = [packer.compress(start), *(packer.compress(block) for _ in range(count // len(block)))]
    return b"".join(blocks) + packer.flush()


def _pages(rng: Random, path: Path, _: str) -> str:
    """Pages of one size or of several, with 8, 16 or 32 bits."""
    modes = ("I;16", "L", "RGB", "RGBA", "F", "I", "1", "CMYK")
    sizes = [rng.choice(((20, 24), (20, 24), (16, 16), (40, 3000)))] * rng.choice((1, 3, BANDS))
    if rng.random() < 0.3:
        sizes.append(rng.choice(((7900, 7900), (21, 24), (60_000, 1))))
    mode = rng.choice(modes)
    pages = [_page(rng, mode, size) for size in sizes]
    if rng.random() < 0.3:
        pages[-1] = _page(rng, rng.choice(modes), sizes[-1])
    pages[0].save(path, "TIFF", save_all=True, append_images=pages[1:], compression="tiff_lzw")
    if rng.random() < 0.3:
        path.write_bytes(damaged_bytes(rng, path.read_bytes())[0])
    return f"{mode} {len(pages)}"


def _page(rng: Random, mode: str, size: tuple[int, int]) -> Image.Image:
    if mode in ("I;16", "F", "I"):
        kind = {"I;16": numpy.uint16, "F": numpy.float32, "I": numpy.int32}[mode]
        return Image.fromarray(numpy.full(size[::-1], rng.randrange(60_000), kind))
    return Image.new(mode, size)


def _special(rng: Random, path: Path, _: str) -> str:
    kind = rng.choice(list(SPECIAL))
    SPECIAL[kind](path)
    return kind


def _large(rng: Random, path: Path, network: str) -> str:
    """As many numbers as a file may have, and more, in few bytes."""
    # Explaining the largest volume is allowed, but takes minutes and gigabytes.
    most = (100, 100, 100) if network == "volumes" else (256, 256, 256)
    sides = rng.choice((most, (257, 256, 256), (1024, 1024, 3000)))
    path.touch()
    with path.open("wb") as file:
        numpy.lib.format.write_array_header_1_0(
            file, {"descr": "|u1", "fortran_order": False, "shape": sides}
        )
        os.truncate(path, file.tell() + int(numpy.prod(sides)))
    return f"{sides}"


Writer = Callable[[Random, Path, str], str]
NPY, TABLES, NIFTI, DICOM = (".npy",), (".csv", ".tsv"), (".nii", ".nii.gz"), (".dcm",)

ARRAYS: Mapping[str, tuple[tuple[str, ...], Writer]] = {
    "array": (NPY, _ordinary),
    "damaged array": (NPY, _damaged_array),
    "header": (NPY, _header),
    "header again": (NPY, _header),
    "not finite": (NPY, _not_finite),
    "objects": (NPY, _objects),
    "zip": (NPY, _zip),
    "table": (TABLES, _table),
    "table again": (TABLES, _table),
    "many commas": (TABLES, _many_commas),
    "NIfTI": (NIFTI, _nifti),
    "DICOM": (DICOM, _dicom),
    "pages": ((".tif", ".tiff", ".png"), _pages),
    "special file": ((*NPY, *TABLES, *NIFTI, *DICOM), _special),
    "other content": ((*NPY, *TABLES, *NIFTI, *DICOM), _ordinary),
    "large": (NPY, _large),
}
"""Ways to write an input that is no photo, with the endings it gets; each returns what it drew."""
