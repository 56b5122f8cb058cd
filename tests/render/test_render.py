"""Pictures: colours mean what the legend says, files are whole or absent."""

from pathlib import Path

import numpy
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

import dmbp
from dmbp.errors import InputError, OutputError
from dmbp.render import plot_linear_map, split_by_sign
from dmbp.render.colour import (
    darkest_magnitude,
    linear_map_colours,
    signed_over_photo,
    smooth_map,
)
from dmbp.render.comparison import ComparedMap, SanityRow, draw_comparison, draw_sanity
from dmbp.render.decomposition import panel_rows, target_text
from dmbp.render.panel import TITLE_WIDTH, PanelRow, draw_panel, format_number, wrap_title
from dmbp.render.pictures import parse_photo, write_all_or_none
from tests import nets


def test_red_for_blue_against_white_for_nothing() -> None:
    photo = numpy.ones((1, 3, 3))
    picture = signed_over_photo(numpy.array([[1.0, 0.0, -1.0]]), photo, scale=1.0, faint=0.5)
    red, white, blue = picture[0]
    assert red[0] > red[2] + 0.2
    assert blue[2] > blue[0] + 0.2
    assert white.tolist() == [1, 1, 1]


def test_the_strongest_half_per_cent_is_clipped() -> None:
    values = numpy.concatenate([numpy.ones(999), [1e6]])
    assert darkest_magnitude(values) == pytest.approx(1.0)
    assert darkest_magnitude(numpy.zeros(4)) == 1.0


def test_long_titles_are_cut_in_the_middle() -> None:
    assert wrap_title("predicted cat (98%)\nfor it") == "predicted cat (98%)\nfor it"
    name = "adenocarcinoma in situ, well differentiated, left lower lobe of the lung"
    lines = wrap_title(f"for and against: {name} (26%)").split("\n")
    assert len(lines) == 2
    assert max(map(len, lines)) <= TITLE_WIDTH
    assert lines[0].startswith("for and against: adenocarcinoma")
    assert lines[1].startswith("…")
    assert lines[1].endswith("lung (26%)")


LONG = "nothing sure, most likely African bush elephant (13%)\nexplained: adenocarcinoma in situ"


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("caption", ["predicted cat (98%)", LONG, f"{LONG}\n{LONG}"])
def test_titles_are_inside_the_picture(caption: str, rows: int) -> None:
    """And on no picture of the row above."""
    blank = numpy.zeros((8, 8, 3))
    row = PanelRow(blank, blank[..., 0], blank, blank, (1.0, 2.0, -1.0, 0.0), caption, caption)
    compared = ComparedMap("gradient", blank[..., 0], [0.0, 1.0], 0.5, 1.0)
    sanity = SanityRow("gradient", blank[..., 0], blank[..., 0], [0.1])
    for figure in (
        draw_panel([row] * rows),
        draw_comparison(blank, caption, [compared] * 5 * rows),
        draw_sanity(blank, caption, [sanity] * rows),
    ):
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        places = [axis.get_window_extent() for axis in figure.axes]
        for axis in filter(Axes.get_title, figure.axes):
            title = axis.title.get_window_extent()
            assert title.y1 <= figure.bbox.y1
            above = [p for p in places if p.x0 < title.x1 and title.x0 < p.x1 and p.y0 > title.y0]
            assert all(title.y1 <= place.y0 for place in above)


def test_rounding_is_not_drawn(tmp_path: Path) -> None:
    model = nets.ResidualNet().eval()
    for parameter in model.fc.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.constant_(model.fc.bias, 1.0)
    torch.nn.init.constant_(model.fc.weight, 1e-12)
    with pytest.warns(UserWarning, match="nothing but rounding"):
        found = dmbp.DMBP(model, iterations=2).explain(torch.randn(1, 3, 16, 16), target=1)
    assert found.is_blank.tolist() == [True]
    assert found.attribution.any()
    assert not panel_rows(found)[0].attribution.any()


def test_smoothing_keeps_the_sum_inside() -> None:
    dot = numpy.zeros((41, 41))
    dot[20, 20] = 1
    spread = smooth_map(dot, 2.0)
    assert spread.sum() == pytest.approx(1)
    assert spread.max() < 0.1
    assert smooth_map(dot, 0) is dot


def test_linear_maps_lie_around_grey() -> None:
    colours = linear_map_colours(numpy.array([[[0.0, 2.0, -9.0]]]), scale=2.0)
    assert colours.tolist() == [[[0.5, 1.0, 0.0]]]


def test_targets_by_their_numbers() -> None:
    assert target_text(7) == "class 7"
    assert target_text({285: 1.0, 243: -1.0}) == "class 285 − class 243"
    assert target_text({0: -0.5, 1: 2.0}) == "−0.5 · class 0 + 2 · class 1"


@pytest.mark.parametrize(("channels", "name"), [(3, "a.png"), (1, "a.svg"), (3, "a.pdf")])
def test_a_decomposition_is_drawn(tmp_path: Path, channels: int, name: str) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(channels, 3, 1), nets.FunctionalNet()).eval()
    d = dmbp.DMBP(model, iterations=2).explain(torch.randn(2, channels, 16, 16), target=1)
    d.plot(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    if name.endswith("png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.size[0] > 1000


def test_numbers_as_a_person_writes_them() -> None:
    given = (2386.2, -0.51, -0.0007, 0.0, 99.5)
    assert [format_number(value) for value in given] == [
        "+2,386",
        "-0.51",
        "0.00",
        "0.00",
        "+99.50",
    ]


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


def test_what_cannot_be_drawn(tmp_path: Path) -> None:
    volumes = torch.nn.Sequential(torch.nn.Conv3d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten())
    d = dmbp.DMBP(volumes.eval(), iterations=1).explain(torch.randn(1, 1, 4, 4, 4), target=0)
    with pytest.raises(InputError, match="only images"):
        d.plot(tmp_path / "a.png")
    image = dmbp.DMBP(nets.ResidualNet().eval(), iterations=1).explain(
        torch.randn(1, 3, 8, 8), target=0
    )
    for given in ({"photos": []}, {"photo_captions": ["a", "b"]}, {"target_captions": []}):
        with pytest.raises(InputError, match=r"were given for 1 rows"):
            image.plot(tmp_path / "a.png", **given)
    for photo in (numpy.zeros((9, 9, 3)), torch.zeros(3, 4, 4), Image.new("RGB", (640, 480))):
        with pytest.raises(InputError, match="given for an input of 8 × 8 pixels"):
            image.plot(tmp_path / "a.png", photos=[photo])
    with pytest.raises(InputError, match="between 0 and 1, or whole numbers"):
        image.plot(tmp_path / "a.png", photos=[numpy.full((8, 8, 3), 127.0)])
    with pytest.raises(InputError, match="target_captions"):
        image.plot(tmp_path / "a.png", names=["cat", "dog"])
    with pytest.raises(OutputError, match=r"'\.bmp'"):
        image.plot(tmp_path / "a.bmp")
    assert not list(tmp_path.iterdir())


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


def test_a_linear_map_is_split_by_its_pixels_signs(tmp_path: Path) -> None:
    inputs = torch.tensor([[[[1.0, 1.0]], [[1.0, 1.0]], [[0.0, 0.0]]]])
    linear_map = torch.tensor([[[[2.0, 1.0]], [[-1.0, -3.0]], [[5.0, 5.0]]]])
    positive, negative = split_by_sign(inputs, linear_map)
    assert positive[0, :, 0].tolist() == [[2.0, 0.0], [-1.0, 0.0], [5.0, 0.0]]
    assert torch.equal(positive + negative, linear_map)
    model, images = nets.ResidualNet().eval(), torch.randn(1, 3, 16, 16)
    gradient = dmbp.linearize(model, images, target=1).pullback()
    plot_linear_map(images, gradient, tmp_path / "gradient.png", reference="blur")
    assert (tmp_path / "gradient.png").exists()
    with pytest.raises(InputError, match="does not fit inputs"):
        plot_linear_map(images, gradient[:, :, 1:], tmp_path / "no.png")
