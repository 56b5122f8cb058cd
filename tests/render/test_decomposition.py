"""Decompositions and linear maps as pictures."""

import re
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image

import dmbp
from dmbp.baseline import baseline_for
from dmbp.errors import InputError, OutputError
from dmbp.render import PanelStyle, plot_linear_map, split_by_sign
from dmbp.render.decomposition import panel_rows, target_text
from tests import nets


def test_rounding_is_not_drawn(tmp_path: Path) -> None:
    model = nets.ResidualNet().eval()
    for parameter in model.fc.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.constant_(model.fc.bias, 1.0)
    torch.nn.init.constant_(model.fc.weight, 1e-12)
    with pytest.warns(UserWarning, match="nothing but rounding"):
        found = dmbp.DMBP(model, preset="fast", iterations=2).explain(
            torch.randn(1, 3, 16, 16), target=1
        )
    assert found.is_blank.tolist() == [True]
    assert found.attribution.any()
    assert not panel_rows(found)[0].attribution.any()


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


def test_a_picture_says_what_the_model_said(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, images = nets.ResidualNet().eval(), torch.randn(1, 3, 16, 16)
    d = dmbp.DMBP(model, iterations=2).explain(images, target=1)
    assert d.tested is not None
    before, change = float(d.output), float(d.tested.change_without_positive[0, 0])
    d.plot(tmp_path / "scores.svg")
    text = (tmp_path / "scores.svg").read_text()
    assert "<!-- for and against: class 1 -->" in text
    assert "<!-- Without the tenth of the photo that is marked strongest in red, the score" in text
    assert "the same pattern elsewhere: " in text.replace("\n", " ")
    assert "<!-- without pixels marked red -->" in text
    assert f"score {before:.1f} → {before + change:.1f}".replace("-", "−") in text
    assert "adds up" not in text
    given = {"activation": "softmax", "target_captions": ["cat"]}
    d.plot(tmp_path / "probabilities.svg", **given, style=PanelStyle(terms=True))
    text = (tmp_path / "probabilities.svg").read_text()
    before = model(images).softmax(1)[0, 1].item()
    assert re.search(f"<!-- cat ({before:.0%}|{before:.1%}) → ", text)
    assert "<!-- how the score adds up -->" in text


def test_shown_pixels_are_those_the_model_was_asked_about() -> None:
    torch.manual_seed(0)
    model, images = nets.ResidualNet().eval(), torch.randn(1, 3, 16, 16)
    d = dmbp.DMBP(model, iterations=2).explain(images, target=1)
    assert d.tested is not None
    (row,) = panel_rows(d)
    assert row.removed is not None
    for sign, outputs in (
        (1, d.tested.outputs_without_positive),
        (-1, d.tested.outputs_without_negative),
        (0, d.tested.outputs_without_control),
    ):
        mask = torch.from_numpy(row.removed[sign]) > 0
        with torch.no_grad():
            asked = model(torch.where(mask, baseline_for(images, "blur"), images))
        assert outputs.tolist()[0] == pytest.approx(asked.tolist()[0], abs=1e-4)


def test_independent_classes_are_explained(tmp_path: Path) -> None:
    model, images = nets.ResidualNet().eval(), torch.randn(1, 3, 16, 16)
    d = dmbp.DMBP(model, iterations=2).explain(images, target=1)
    for activation, said in (("sigmoid", True), ("softmax", False)):
        d.plot(tmp_path / "a.svg", activation=activation)
        assert ("judged independently" in (tmp_path / "a.svg").read_text()) == said


def test_what_cannot_be_drawn(tmp_path: Path) -> None:
    class Film(torch.nn.Module):
        """Scores of volumes that change in time."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total = torch.relu(x).flatten(1).sum(1)
            return torch.stack([total, -total], 1)

    d = dmbp.DMBP(Film().eval(), iterations=1).explain(torch.randn(1, 1, 2, 4, 4, 4), target=0)
    with pytest.raises(InputError, match="can be drawn as pictures, not inputs of shape"):
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
