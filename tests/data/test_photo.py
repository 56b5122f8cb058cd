"""Photos of every kind become upright RGB images; broken ones are refused with a message."""

from pathlib import Path

import numpy
import pytest
from PIL import Image

from dmbp.data import read_photo
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
        ("empty.png", "not an image"),
        ("dot.png", "1×1 pixels; a photo needs at least 16"),
        ("huge.png", "more than 150 megapixels"),
        (".", "cannot be read"),
    ]:
        with pytest.raises(PhotoError, match=sentence):
            read_photo(tmp_path / name)
