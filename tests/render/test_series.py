"""Charts of what is no image: red and blue stand where the numbers say."""

from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image
from torch import nn

import dmbp
from dmbp.errors import InputError
from dmbp.render import ColourTest, Outcome, PanelStyle
from dmbp.render.colour import RED_BLUE
from dmbp.render.series import SeriesRow, draw_features, draw_series, draw_signal, pick_strongest
from tests import nets

TERMS = (1.0, 2.0, -0.5, -0.5)


class Listener(nn.Sequential):
    """A network on signals."""

    def __init__(self, channels: int = 2) -> None:
        torch.manual_seed(0)
        super().__init__(
            nn.Conv1d(channels, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(6, 6, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(6, 4),
        )


def drawn(row: SeriesRow, chart: object) -> Figure:
    return draw_series([row], chart, height=3.0)


def test_moments_are_red_for_and_blue_against() -> None:
    values = numpy.array([[0.0, 1.0, 0.5, 0.2], [3.0, 2.0, 1.0, 0.0]])
    attribution = numpy.array([[1.0, 0.0, -1.0, 0.0], [0.0, 0.0, 0.0, 0.5]])
    figure = drawn(SeriesRow(values, attribution, TERMS, "cat", ["left", "right"]), draw_signal)
    axes = [axis for axis in figure.axes if axis.get_ylabel() in ("left", "right")]
    spans = [axis.images[0].get_array()[0] for axis in axes]
    red, white, blue, _ = spans[0][:, :3]
    assert red[0] > red[2] + 0.2
    assert blue[2] > blue[0] + 0.2
    assert white.min() > 0.99
    assert spans[1][3][0] > spans[1][3][2]
    for line, axis in zip(values, axes, strict=True):
        assert axis.images[0].get_extent()[:2] == [
            -0.5,
            3.5,
        ]  # each moment in the middle of its own
        assert axis.lines[0].get_ydata().tolist() == line.tolist()


def test_a_long_signal_is_an_envelope() -> None:
    """A single moment of evidence, and the least and largest values, do not get lost."""
    values, attribution = numpy.zeros((1, 50_000)), numpy.zeros((1, 50_000))
    values[0, 20_000], values[0, 30_000], attribution[0, 40_000] = 5.0, -4.0, 1.0
    figure = drawn(SeriesRow(values, attribution, TERMS, "cat", ["lead"]), draw_signal)
    (axis,) = (axis for axis in figure.axes if axis.get_ylabel() == "lead")
    assert not axis.lines
    vertices = axis.collections[0].get_paths()[0].vertices
    assert vertices[:, 1].max() == 5.0
    assert vertices[:, 1].min() == -4.0
    assert abs(vertices[vertices[:, 1].argmax(), 0] - 20_000) < 50
    colours = axis.images[0].get_array()[0]
    redness = colours[:, 0] - colours[:, 2]
    assert redness.max() > 0.2
    assert abs(redness.argmax() * 50_000 / len(redness) - 40_000) < 200


def test_features_are_bars_with_their_values() -> None:
    row = SeriesRow(numpy.array([3.0, -1.5]), numpy.array([0.25, -2.0]), TERMS, "cat", ["a", "b"])
    axis = drawn(row, draw_features).axes[0]
    assert [bar.get_width() for bar in axis.patches] == [-2.0, 0.25]  # the strongest first
    colours = [to_rgb(bar.get_facecolor()) for bar in axis.patches]
    assert colours == [to_rgb(RED_BLUE.negative), to_rgb(RED_BLUE.positive)]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["b = -1.5", "a = 3"]
    assert axis.get_title() == "cat"


def test_the_strongest_are_shown_in_their_order() -> None:
    places, said = pick_strongest(["a", "b", "c", "d"], numpy.array([1.0, -3.0, 0.0, 2.0]), most=2)
    assert places == [1, 3]
    assert said == ", the 2 strongest of 4"
    assert pick_strongest(["a", "b"], numpy.zeros(2), most=2) == ([0, 1], "")


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Listener(), (2, 2, 32)),
        (Listener(12), (1, 12, 16)),
        (nets.MLP(), (2, 7)),
        (nn.Sequential(nn.Linear(40, 8), nn.ReLU(), nn.Linear(8, 3)), (1, 40)),
    ],
)
def test_what_is_no_image_is_explained_and_drawn(
    model: nn.Module, shape: tuple[int, ...], tmp_path: Path
) -> None:
    d = dmbp.DMBP(model.eval(), iterations=3).explain(torch.randn(shape), target=1)
    assert d.attribution.shape == shape
    d.plot(tmp_path / "a.png", target_captions=["the second"] * shape[0])
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size[0] > 1000


def test_a_signal_of_one_moment(tmp_path: Path) -> None:
    """It is its own blur and mean, so that only the streams have colours."""
    layers = nn.Conv1d(2, 16, 1), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)
    model = nn.Sequential(*layers).eval()
    fast = dmbp.DMBP(model, preset="fast", iterations=3)
    fast.explain(torch.randn(1, 2, 1), target=1).plot(tmp_path / "a.png")
    with pytest.warns(UserWarning, match="zero everywhere"):
        d = dmbp.DMBP(model, iterations=3).explain(torch.randn(1, 2, 1), target=1)
    d.plot(tmp_path / "b.svg")
    assert "<!-- Nothing is coloured: no part of the signal" in (tmp_path / "b.svg").read_text()


def said(figure: Figure) -> str:
    texts = [text for axis in figure.axes for text in (axis.title, *axis.texts)]
    return "\n".join(" ".join(text.get_text().split()) for text in texts)


def test_a_sentence_takes_the_place_of_the_terms() -> None:
    test = ColourTest("cat", Outcome(2.0), Outcome(-1.0), None, Outcome(1.8))
    values, attribution = numpy.zeros((1, 4)), numpy.array([[1.0, 0.0, 0.5, 0.0]])
    row = SeriesRow(values, attribution, TERMS, "cat", ["left"])
    tested = replace(row, test=test)
    assert "adds up" in said(draw_series([row], draw_signal, height=3.0))
    text = said(draw_series([tested], draw_signal, height=3.0))
    assert "adds up" not in text
    assert (
        "Without the moments marked strongest in red, the score of cat falls from 2.0 to −1.0 "
        "(the same pattern elsewhere: 1.8). No part was found that speaks against cat." in text
    )
    style = PanelStyle(terms=True)
    assert "adds up" in said(draw_series([tested], draw_signal, height=3.0, style=style))
    vector = SeriesRow(values[0], attribution[0], TERMS, "cat", list("abcd"), test)
    assert "Without the features marked strongest in red, " in said(
        draw_series([vector], draw_features, height=3.0)
    )


def test_names_that_do_not_fit(tmp_path: Path) -> None:
    d = dmbp.DMBP(nets.MLP().eval(), iterations=1).explain(torch.randn(1, 7), target=0)
    with pytest.raises(InputError, match="2 names were given for 7 features"):
        d.plot(tmp_path / "a.png", names=["age", "size"])
    assert not list(tmp_path.iterdir())
