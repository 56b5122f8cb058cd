"""Photos of every form are understood, and files are written all or none."""

from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image

from dmbp.errors import OutputError
from dmbp.render.pictures import parse_photo, write_all_or_none


def test_photos_as_they_come() -> None:
    """From Pillow, as a file's bytes, as numbers to one, channels first in a tensor: the same."""
    colours = numpy.random.default_rng(0).integers(0, 256, (8, 6, 3), dtype=numpy.uint8)
    expected = colours / 255
    tensor = torch.from_numpy(colours)
    given = (colours, expected, tensor, tensor.permute(2, 0, 1) / 255, Image.fromarray(colours))
    for photo in given:
        assert numpy.allclose(parse_photo(photo, (8, 6)), expected, atol=1e-6)
    grey = Image.fromarray(colours[..., 0])
    for photo in (grey, numpy.asarray(grey), torch.from_numpy(colours[..., 0])[None]):
        assert numpy.allclose(parse_photo(photo, (8, 6)), expected[..., :1])


def test_files_are_written_together_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if "second" in path.name:
            raise OSError(28, "No space left on device")
        return written(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OutputError, match="No space left on device"):
        write_all_or_none({tmp_path / "first": b"1", tmp_path / "second": b"2"})
    assert not list(tmp_path.iterdir())
