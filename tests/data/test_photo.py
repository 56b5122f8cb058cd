"""Photos of every kind become upright RGB images; broken ones are refused with a message."""

import errno
import logging
import os
import random
import struct
from pathlib import Path

import numpy
import pytest
from PIL import Image, ImageFile

from dmbp.data import photo_paths, read_photo
from dmbp.data.photo import FORMATS, MAX_BYTES
from dmbp.errors import PhotoError

RAMP = numpy.linspace(0, 255, 32 * 24).reshape(24, 32)


def saved(tmp_path: Path, image: Image.Image, name: str, **options: object) -> Path:
    image.save(tmp_path / name, **options)
    return tmp_path / name


@pytest.mark.parametrize(
    ("mode", "name"),
    [("RGB", "a.jpg"), ("L", "a.png"), ("P", "a.gif"), ("CMYK", "a.tif"), ("1", "b.png")],
)
def test_modes(tmp_path: Path, mode: str, name: str) -> None:
    image = Image.fromarray(RAMP.astype(numpy.uint8)).convert("RGB")
    image = image.quantize() if mode == "P" else image.convert(mode)
    photo = read_photo(saved(tmp_path, image, name))
    assert (photo.mode, photo.size) == ("RGB", (32, 24))
    if mode != "1":
        assert numpy.abs(numpy.asarray(photo, float).mean(2) - RAMP).mean() < 6


def test_sixteen_bits_keep_their_range(tmp_path: Path) -> None:
    """Pillow's own conversion would turn everything above 255 white."""
    image = Image.fromarray((RAMP * 257).astype(numpy.uint16))
    photo = read_photo(saved(tmp_path, image, "a.png"))
    assert numpy.abs(numpy.asarray(photo, float)[..., 0] - RAMP).max() <= 1


def test_floating_point_is_stretched(tmp_path: Path) -> None:
    image = Image.fromarray((RAMP * 7 - 100).astype(numpy.float32))
    photo = numpy.asarray(read_photo(saved(tmp_path, image, "a.tif")))
    assert (photo.min(), photo.max()) == (0, 255)


def test_transparency_lies_on_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (20, 20), (255, 0, 0, 0))
    assert read_photo(saved(tmp_path, image, "a.png")).getpixel((3, 3)) == (255, 255, 255)
    palette = Image.new("P", (20, 20), 0)
    assert read_photo(saved(tmp_path, palette, "p.png", transparency=0)).getpixel((3, 3)) == (
        255,
        255,
        255,
    )


def test_exif_rotation_is_applied(tmp_path: Path) -> None:
    image = Image.new("RGB", (40, 20), "white")
    image.paste("black", (0, 0, 10, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 270°
    photo = read_photo(saved(tmp_path, image, "a.jpg", exif=exif))
    assert photo.size == (20, 40)
    assert photo.getpixel((10, 2))[0] < 50
    assert photo.getpixel((10, 38))[0] > 200


def test_broken_photos(tmp_path: Path) -> None:
    whole = saved(tmp_path, Image.effect_noise((200, 200), 50), "whole.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.jpg").write_text("no image")
    (tmp_path / "empty.png").write_bytes(b"")
    saved(tmp_path, Image.new("L", (1, 1)), "dot.png")
    saved(tmp_path, Image.new("1", (20_000, 10_000)), "huge.png")
    for name, sentence in [
        ("missing.jpg", "there is no file"),
        ("cut.jpg", "truncated"),
        ("text.jpg", "not an image"),
        ("empty.png", "it is empty"),
        ("dot.png", "1×1 pixels; a photo needs at least 16"),
        ("huge.png", "more than 64 megapixels"),
        (".", "cannot be read"),
    ]:
        with pytest.raises(PhotoError, match=sentence):
            read_photo(tmp_path / name)


def test_sizes_are_limited_before_pixels_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scaling the short side of such a photo up would take gigabytes."""
    long = saved(tmp_path, Image.new("1", (16, 16 * 50 + 1)), "long.png")
    allowed = saved(tmp_path, Image.new("1", (16, 16 * 50)), "allowed.png")
    fat = saved(tmp_path, Image.new("1", (20, 20)), "fat.png")
    with fat.open("ab") as file:
        file.truncate(MAX_BYTES + 1)
    assert read_photo(allowed).size == (16, 800)
    monkeypatch.setattr(ImageFile.ImageFile, "load", None)
    with pytest.raises(PhotoError, match="16×801 pixels; one side may be at most 50 times as long"):
        read_photo(long)
    with pytest.raises(PhotoError, match="it has 536,870,913 bytes, more than the 536,870,912"):
        read_photo(fat)


@pytest.mark.parametrize("name", ["pipe.jpg", "/dev/zero"])
def test_only_regular_files_are_read(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(PhotoError, match=r"cannot be read: it is a (pipe|device), not a file"):
        read_photo(tmp_path / name)


@pytest.mark.parametrize("format", ["PPM", "ICO", "PDF", "EPS", "JPEG2000", "TGA"])
def test_formats_are_told_by_content(tmp_path: Path, format: str) -> None:
    image = Image.new("RGB", (32, 32))
    image.save(tmp_path / "a.jpg", format)
    with pytest.raises(PhotoError, match="its content is not JPEG, PNG, BMP, GIF, TIFF or WEBP"):
        read_photo(tmp_path / "a.jpg")


@pytest.mark.parametrize("format", FORMATS)
def test_names_do_not_matter(tmp_path: Path, format: str) -> None:
    Image.new("RGB", (32, 24)).save(tmp_path / "photo", format)
    assert read_photo(tmp_path / "photo").size == (32, 24)


@pytest.mark.parametrize("error", [IndexError("x"), KeyError(1), RecursionError(), MemoryError()])
def test_whatever_a_decoder_raises_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_: object) -> None:
        raise error

    path = saved(tmp_path, Image.new("RGB", (32, 32)), "a.png")
    monkeypatch.setattr(ImageFile.ImageFile, "load", fail)
    with pytest.raises(PhotoError, match=r"a\.png cannot be read: ."):
        read_photo(path)


@pytest.mark.parametrize("value", [numpy.nan, numpy.inf, -numpy.inf])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    pixels = RAMP.astype(numpy.float32)
    pixels[3, 4] = value
    path = saved(tmp_path, Image.fromarray(pixels), "a.tif")
    with pytest.raises(
        PhotoError, match=r"a\.tif cannot be read: it has pixels that are NaN or inf"
    ):
        read_photo(path)


def test_folders_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", denied)
    with pytest.raises(PhotoError, match=r"the folder .* cannot be read: permission denied"):
        photo_paths([tmp_path])


def test_pillow_logs_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without handlers, Python prints what libraries log as errors; pytest sets some."""
    path = tmp_path / "deep.tif"
    Image.new("RGB", (32, 32)).save(path)
    samples = struct.pack("<HHI", 277, 3, 1)  # the tag for samples per pixel, one short number
    content = path.read_bytes()
    assert content.count(samples + b"\x03") == 1
    path.write_bytes(content.replace(samples + b"\x03", samples + b"\xff"))
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with pytest.raises(PhotoError, match="not an image that can be read"):
        read_photo(path)
    assert capfd.readouterr().err == ""


def test_libtiff_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Errors of the library go to the process's standard error, not to Python's."""
    noise = Image.frombytes("RGB", (64, 64), random.Random(0).randbytes(64 * 64 * 3))
    path = tmp_path / "a.tif"
    noise.save(path, compression="tiff_deflate")
    content = bytearray(path.read_bytes())
    content[200:260] = bytes(60)
    path.write_bytes(content)
    with pytest.raises(PhotoError, match=r"a\.tif cannot be read"):
        read_photo(path)
    assert capfd.readouterr() == ("", "")
