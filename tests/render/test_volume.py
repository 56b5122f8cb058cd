"""Volumes laid out as slices, and bands of images: what is drawn where."""

from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image
from torch import nn

import dmbp
from dmbp.errors import InputError
from dmbp.render import panel_rows
from dmbp.render.pictures import shown_bands, stretch_bands
from dmbp.render.volume import Montage


def test_each_slice_is_where_its_label_says() -> None:
    values = numpy.arange(4 * 6 * 8, dtype=float).reshape(4, 6, 8)
    montage = Montage((4, 6, 8), through=(1, 2, 3))
    picture = montage.lay_out(values, fill=-1.0)
    depth, column, row, every = (view.cut(picture) for view in montage.views)
    assert (depth == values[1]).all()
    assert (column == values[:, :, 3].T).all()
    assert (row == values[:, 2]).all()
    assert (every == values[3]).all()  # later depths have larger values
    assert (picture == -1).sum() == picture.size - sum(k.height * k.width for k in montage.views)


@pytest.mark.parametrize("size", [(9, 4, 3), (1, 5, 7), (5, 5, 5), (40, 3, 3)])
def test_volumes_of_every_shape_fit(size: tuple[int, int, int]) -> None:
    montage = Montage(size, through=(size[0] - 1, 0, 1))
    covered = montage.lay_out(numpy.ones(size))
    assert covered.sum() == sum(view.height * view.width for view in montage.views)
    colours = montage.lay_out(numpy.ones((*size, 3)))
    assert colours.shape == (*covered.shape, 3)


def test_slices_go_through_the_strongest_evidence() -> None:
    attribution = numpy.zeros((12, 14, 16))
    assert Montage.of(attribution).through == (6, 7, 8)
    attribution[2, 3, 4] = -9.0
    assert Montage.of(attribution).through == (2, 3, 4)  # nothing speaks for it
    attribution[8, 9, 10] = 1.0
    assert Montage.of(attribution).through == (8, 9, 10)
    every = Montage.of(attribution).lay_out(attribution)
    assert every.min() == -9.0  # what lies elsewhere is seen through all depths


def test_a_panel_of_a_volume(tmp_path: Path) -> None:
    """A network that adds up one block: red lies on it in every slice, and it is removed."""

    class Block(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total = torch.relu(x)[:, 0, 2:5, 6:9, 1:5].flatten(1).sum(1)
            return torch.stack([total, -total], 1)

    inputs = 1 + torch.rand(1, 1, 8, 12, 10, dtype=torch.float64)
    d = dmbp.DMBP(Block().eval(), removal="zero", iterations=3).explain(inputs, target=0)
    (row,) = panel_rows(d)
    z, y, x = Montage.of(d.attribution[0, 0].numpy()).through
    assert (z in range(2, 5), y in range(6, 9), x in range(1, 5)) == (True, True, True)
    depth = row.views[0]
    inside = numpy.zeros((12, 10), dtype=bool)
    inside[6:9, 1:5] = True
    red = depth.cut(row.attribution).clip(min=0)
    assert red[inside].sum() > 0.6 * red.sum()
    assert [view.label for view in row.views][3] == "all depths"
    d.plot(tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert f"depth {z + 1} of 8" in text
    assert "of the volume that is marked" in text
    d.save(tmp_path / "a.safetensors")
    again = dmbp.load(tmp_path / "a.safetensors")
    assert torch.equal(again.attribution, d.attribution)
    assert again.tested is not None
    with pytest.raises(InputError, match="photos are for images"):
        d.plot(tmp_path / "b.png", photos=[numpy.zeros((12, 10, 3))])


def test_bands_are_chosen_by_their_numbers() -> None:
    inputs = torch.zeros(1, 10, 4, 4)
    assert shown_bands(inputs, None) == (0, 1, 2)
    assert shown_bands(inputs, (4, 3, 2)) == (3, 2, 1)
    assert shown_bands(inputs[:, :2], None) == (0,)
    assert shown_bands(torch.zeros(1, 4, 2, 2, 2), None) == (0,)
    for bands, sentence in [
        ((0, 1, 2), "no band 0: .* 1 to 10"),
        ((1, 11, 2), "no band 11"),
        ((1, 2), "one band, or three"),
    ]:
        with pytest.raises(InputError, match=sentence):
            shown_bands(inputs, bands)


def test_contrast_of_bands_does_not_depend_on_outliers() -> None:
    bands = torch.rand(3, 100, 100) * torch.tensor([1.0, 100.0, 1e-3])[:, None, None]
    bands[:, 0, 0] *= 1000
    picture = stretch_bands(bands)
    assert picture.min() == 0
    assert picture.max() == 1
    assert abs(picture.mean((0, 1)) - 0.5).max() < 0.05
    assert (stretch_bands(torch.full((1, 4, 4), 7.0)) == 0).all()


def test_an_image_of_ten_bands_is_drawn(tmp_path: Path) -> None:
    model = nn.Sequential(
        nn.Conv2d(10, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    inputs = torch.rand(1, 10, 20, 24)
    d = dmbp.DMBP(model.eval(), iterations=2).explain(inputs, target=0)
    d.plot(tmp_path / "a.png", bands=(4, 3, 2))
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size[0] > 1000
    (row,) = panel_rows(d, bands=(4, 3, 2))
    assert (row.photo == stretch_bands(inputs[0, [3, 2, 1]])).all()
    assert row.photo_caption == "input, bands 4, 3, 2 of 10"
