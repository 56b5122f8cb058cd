"""Uploads are decoded by content, within limits, in a process that can do nothing else."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from dmbp.data.photo import photo_of
from dmbp.errors import PhotoError
from dmbp.web.decoding import FORMATS, MAX_PIXELS, Decoder, EncodedPhoto, Pixels
from dmbp.web.store import ByteStore
from dmbp.web.work_queue import JobFailed, WorkQueue


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def decode(content: bytes) -> Image.Image:
    return photo_of(content, "x.jpg", formats=FORMATS, max_pixels=MAX_PIXELS)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_photos_are_decoded_by_content(kind: str) -> None:
    image = decode(encoded(Image.new("RGB", (40, 30), (200, 30, 30)), kind))
    assert (image.mode, image.size) == ("RGB", (40, 30))


@pytest.mark.parametrize("kind", ["GIF", "BMP", "TIFF"])
def test_other_formats_are_refused(kind: str) -> None:
    with pytest.raises(PhotoError, match="its content is not JPEG, PNG or WEBP"):
        decode(encoded(Image.new("RGB", (40, 30)), kind))


@pytest.mark.parametrize("content", [b"", b"<svg/>", b"%PDF-1.7", b"GIF89a", b"\xff\xd8\xff\xe0"])
def test_what_is_no_photo_is_refused(content: bytes) -> None:
    with pytest.raises(PhotoError):
        decode(content)


def test_a_photo_of_too_many_pixels_is_refused_by_its_header() -> None:
    bomb = encoded(Image.new("1", (6000, 5000)))
    assert len(bomb) < 10_000
    with pytest.raises(PhotoError, match="more than 25 megapixels"):
        decode(bomb)


def test_a_truncated_photo_is_refused() -> None:
    noise = Image.effect_noise((64, 64), 50).convert("RGB")
    with pytest.raises(PhotoError, match="cannot be read"):
        decode(encoded(noise)[:2000])


def test_exif_data_turns_the_photo_and_is_dropped() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    exif[0x010F] = "a camera"
    content = encoded(Image.new("RGB", (40, 30)), "JPEG", exif=exif)
    assert b"a camera" in content
    image = decode(content)
    assert image.size == (30, 40)
    assert Pixels.of(image).content == image.tobytes()
    assert not Pixels.of(image).image().getexif()
    assert not Pixels.of(image).image().info


def in_decoder(use: Callable[[WorkQueue], Awaitable[None]]) -> None:
    async def run() -> None:
        queue = WorkQueue("dmbp.web.decoding:Decoder", what="decodes photos", seconds=20)
        await queue.start()
        try:
            await use(queue)
        finally:
            await queue.stop()

    asyncio.run(run())


@pytest.mark.skipif(sys.platform != "linux", reason="limits of processes are read from /proc")
def test_the_process_has_limits_and_neither_torch_nor_files() -> None:
    async def use(queue: WorkQueue) -> None:
        limits = Path(f"/proc/{queue.pid}/limits").read_text()
        found = {line[:26].strip(): line[26:].split()[0] for line in limits.splitlines()[1:]}
        assert int(found["Max address space"]) < 2**31
        assert found["Max file size"] == "0"
        assert int(found["Max open files"]) <= 64
        assert "libtorch" not in Path(f"/proc/{queue.pid}/maps").read_text()
        image = Image.new("RGB", (40, 30), (1, 2, 3))
        pixels = await queue.submit("decode", EncodedPhoto(encoded(image), "x.png")).answer()
        assert pixels == Pixels.of(image)
        with pytest.raises(JobFailed, match="its content is not"):
            await queue.submit("decode", EncodedPhoto(b"GIF89a", "x.gif")).answer()

    in_decoder(use)


def test_the_decoder_answers_each_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmbp.web.decoding._limit_resources", lambda: None)
    image = Image.new("RGB", (20, 20))
    uploads = [EncodedPhoto(encoded(image), "a.png"), EncodedPhoto(b"x", "b.png")]
    good, bad = Decoder().answer("decode", uploads, lambda *_: None)
    assert isinstance(good, Pixels)
    assert good.image().size == (20, 20)
    assert "b.png" in bad.sentence


def test_a_store_forgets_what_was_used_longest_ago() -> None:
    store: ByteStore[str] = ByteStore(10)
    for key in "abc":
        store.put(key, key.upper(), 4)
        store.get("a")
    assert [store.get(key) for key in "abc"] == ["A", None, "C"]
    store.put("a", "B", 2)
    store.put("too large", "", 11)
    assert (store.bytes, len(store), store.get("a")) == (6, 2, "B")
