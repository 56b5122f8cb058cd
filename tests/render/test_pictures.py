"""Photos of every form are understood, and files are written all or none."""

from io import BytesIO
from pathlib import Path

import numpy
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from dmbp.display import DOTS_PER_INCH, encode_figure
from dmbp.errors import OutputError
from dmbp.files import write_all_or_none
from dmbp.render.pictures import parse_photo


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


def test_names_are_no_formulas() -> None:
    """matplotlib would refuse the first name; the powers of ten of an axis stay formulas."""
    figure = Figure()
    axis = figure.add_subplot()
    axis.set_title(r"$\nosuch$")
    axis.set_xscale("log")
    axis.plot([1, 1000], [0, 1], label="$x$")
    axis.legend()
    assert encode_figure(figure, ".png").startswith(b"\x89PNG")
    assert not axis.title.get_parse_math()
    assert all(label.get_parse_math() for label in axis.get_xticklabels())


def test_names_that_are_too_long_after_their_ending(tmp_path: Path) -> None:
    fits = tmp_path / ("a" * 251 + ".png")
    write_all_or_none({fits: b"x"})
    assert [path.name for path in tmp_path.iterdir()] == [fits.name]
    with pytest.raises(OutputError, match=r"cannot write .*\.json: its name is too long"):
        write_all_or_none({tmp_path / ("a" * 251 + ".json"): b"x"})


def small_figure() -> Figure:
    figure = Figure(figsize=(3, 2), layout="constrained")
    left, right = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2)
    left.imshow(numpy.arange(12.0).reshape(3, 4))
    left.set_title("a title\nof two lines")
    right.plot([0, 3, 1])
    return figure


def test_a_png_is_what_matplotlib_would_write() -> None:
    figure = small_figure()
    before = figure.dpi, figure.canvas, figure.get_layout_engine()
    found, expected = encode_figure(figure, ".png"), BytesIO()
    assert (figure.dpi, figure.canvas, figure.get_layout_engine()) == before
    small_figure().savefig(expected, format="png", dpi=DOTS_PER_INCH, facecolor="white")
    with Image.open(BytesIO(found)) as one, Image.open(expected) as other:
        assert numpy.array_equal(numpy.asarray(one), numpy.asarray(other))
