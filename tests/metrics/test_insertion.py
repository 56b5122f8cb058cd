"""The insertion metric against curves worked out by hand."""

import pytest
import torch
from torch import Tensor, nn

from dmbp.errors import InputError
from dmbp.metrics import area, insertion, insertion_curve, pixel_ranks


class Brightness(nn.Module):
    """Two classes: the sum of the pixels, and zero. Its sigmoid is easy to follow."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.sum((1, 2, 3))
        return torch.stack([total, torch.zeros_like(total)], 1)


IMAGE = torch.tensor([[[[3.0, -1.0], [2.0, 0.0]]]])


def test_a_curve_by_hand() -> None:
    """Pixels 3, 2, 0, −1 go in one by one: sums 0, 3, 5, 5, 4."""
    curve = insertion_curve(
        Brightness().eval(), IMAGE, 0, IMAGE, steps=4, substrate=None, activation="sigmoid"
    )
    expected = torch.tensor([[0.0, 3.0, 5.0, 5.0, 4.0]]).sigmoid()
    torch.testing.assert_close(curve, expected)
    score = insertion(
        Brightness().eval(), IMAGE, 0, IMAGE, steps=4, substrate=None, activation="sigmoid"
    )
    p = expected[0]
    torch.testing.assert_close(score[0], (p[0] / 2 + p[1] + p[2] + p[3] + p[4] / 2) / 4)


def test_an_activation_of_ones_own() -> None:
    def halves(outputs: Tensor) -> Tensor:
        return outputs / 2

    curve = insertion_curve(
        Brightness().eval(), IMAGE, 0, IMAGE, steps=4, substrate=None, activation=halves
    )
    assert curve.tolist() == [[0.0, 1.5, 2.5, 2.5, 2.0]]


def test_softmax_and_a_substrate() -> None:
    curve = insertion_curve(
        Brightness().eval(), IMAGE, 1, -IMAGE, steps=2, substrate=torch.ones(1, 1, 2, 2)
    )
    sums = torch.tensor([4.0, 4.0 - 3.0, 4.0])  # −1 and 0 replace two ones, then 3 and 2
    torch.testing.assert_close(curve[0], torch.sigmoid(-sums))


def test_equal_pixels_go_in_from_the_top_left() -> None:
    ranks = pixel_ranks(torch.zeros(1, 3, 2, 2), torch.zeros(1, 3, 2, 2))
    assert ranks.flatten().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [1, 7, 64])
def test_batching_changes_nothing(size: int) -> None:
    model = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
        .double()
        .eval()
    )
    images, maps = torch.randn(2, 4, 3, 8, 8, dtype=torch.float64)
    together = insertion(model, images, [0, 1, 2, 3], maps, internal_batch_size=size)
    alone = [insertion(model, images[k : k + 1], k, maps[k : k + 1]) for k in range(4)]
    torch.testing.assert_close(together, torch.cat(alone))


def test_area_of_a_straight_line() -> None:
    assert area(torch.linspace(0, 1, 11)[None]).item() == pytest.approx(0.5)


def test_what_has_no_score() -> None:
    with pytest.raises(InputError, match="does not fit inputs"):
        insertion(Brightness().eval(), IMAGE, 0, torch.zeros(1, 1, 3, 3))
    with pytest.raises(InputError, match="contains NaN"):
        insertion(Brightness().eval(), IMAGE, 0, IMAGE * torch.nan)
    with pytest.raises(InputError, match="no activation 'relu'"):
        insertion(Brightness().eval(), IMAGE, 0, IMAGE, activation="relu")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="steps"):
        insertion(Brightness().eval(), IMAGE, 0, IMAGE, steps=0)
    with pytest.raises(InputError, match="2 targets were given for 1 images"):
        insertion(Brightness().eval(), IMAGE, [0, 1], IMAGE, substrate=None)
