"""Removal: changes of a score that can be worked out by hand."""

import pytest
import torch
from torch import Tensor, nn

from dmbp.errors import InputError, TargetError
from dmbp.metrics import removal
from dmbp.metrics.removal import mass_share, sign_mask


class Brightness(nn.Module):
    """Two classes: the sum of the pixels, and zero."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.sum((1, 2, 3))
        return torch.stack([total, torch.zeros_like(total)], 1)


IMAGE = torch.tensor([[[[3.0, -1.0, 1.0], [2.0, 0.0, -4.0]]]])
"""The sum is 1. As a map of itself, its strongest pixels are 3 and −4; |mass| is 11."""

MODEL = Brightness().eval()


def test_the_strongest_pixels_of_each_sign_by_hand() -> None:
    """A third of six pixels: without 3 and 2 the sum is −4, without −4 and −1 it is 6."""
    found = removal(MODEL, IMAGE, 0, IMAGE, share=1 / 3, substrate="zero")
    assert found.score.tolist() == [1.0]
    assert found.score_without_positive.tolist() == [-4.0]
    assert found.score_without_negative.tolist() == [6.0]
    for name in ("probability", "probability_without_positive", "probability_without_negative"):
        score = getattr(found, name.replace("probability", "score"))
        torch.testing.assert_close(getattr(found, name), score.sigmoid())  # softmax against 0
    assert found.positive_share.tolist() == [pytest.approx(6 / 11)]
    assert found.negative_share.tolist() == [pytest.approx(5 / 11)]
    assert found.positive_removed.tolist() == [pytest.approx(1 / 3)]
    assert (found.red_true.item(), found.claims_blue.item(), found.blue_true.item()) == (1, 1, 1)


def test_a_map_with_wrong_signs_is_not_confirmed() -> None:
    found = removal(MODEL, IMAGE, 0, -IMAGE, substrate="zero")
    assert found.score_without_positive.tolist() == [5.0]  # without −4
    assert found.score_without_negative.tolist() == [-2.0]  # without 3
    assert (found.red_true.item(), found.claims_blue.item(), found.blue_true.item()) == (0, 1, 0)


def test_all_pixels_of_a_sign() -> None:
    found = removal(MODEL, IMAGE, 0, IMAGE, share=None, substrate="zero")
    assert found.score_without_positive.tolist() == [-5.0]
    assert found.score_without_negative.tolist() == [6.0]
    assert found.positive_removed.tolist() == [0.5]


def test_only_pixels_that_have_the_sign_are_replaced() -> None:
    """Four of six are asked for, but three are positive and two negative."""
    found = removal(MODEL, IMAGE, 0, IMAGE, share=4 / 6, substrate="zero")
    assert found.score_without_positive.tolist() == [-5.0]
    assert found.negative_removed.tolist() == [pytest.approx(2 / 6)]


class Unstable(nn.Module):
    """Its output depends a little on the batch, as kernels may round differently."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum((2, 3)) + 1e-3 * len(x)


def test_without_pixels_of_a_sign_the_score_is_that_of_the_image() -> None:
    maps = torch.cat([IMAGE.clamp(min=0), IMAGE.clamp(max=0), torch.zeros_like(IMAGE)])
    found = removal(
        Unstable().eval(), IMAGE.repeat(3, 1, 1, 1), 0, maps, internal_batch_size=1, substrate=None
    )
    without = (found.score_without_positive, found.score_without_negative)
    unchanged = [(score == found.score).tolist() for score in without]
    assert unchanged == [[False, True, True], [True, False, True]]
    assert found.red_true.tolist() == [1.0, 0.0, 0.0]
    assert found.claims_blue.tolist() == [0.0, 1.0, 0.0]
    assert found.positive_share.tolist() == [1.0, 0.0, 0.0]


def test_a_map_that_claims_no_blue_has_no_blue_truth() -> None:
    """Negative pixels hold 1/21 of the first map, under 5 %, and 1/19 of the second."""
    maps = torch.zeros(2, 1, 2, 3)
    maps[:, 0, 0, 0], maps[:, 0, 1, 2] = torch.tensor([20.0, 18.0]), -1.0
    found = removal(MODEL, IMAGE.repeat(2, 1, 1, 1), 0, maps, substrate="zero")
    assert found.claims_blue.tolist() == [0.0, 1.0]
    assert found.blue_true.isnan().tolist() == [True, False]
    assert found.blue_true.nanmean().item() == 1.0


def test_channels_are_added_up_first() -> None:
    maps = torch.tensor([[[[3.0, -1.0]], [[-4.0, 2.0]]]])  # sums −1 and 1
    images = torch.tensor([[[[5.0, 7.0]], [[1.0, 2.0]]]])
    assert sign_mask(maps, images, 1).flatten().tolist() == [False, True]
    found = removal(MODEL, images, 0, maps, substrate="zero")
    assert found.score_without_positive.tolist() == [6.0]  # both channels of the right pixel
    assert mass_share(maps, -1).tolist() == [0.5]


def test_a_linear_model_loses_its_contributions() -> None:
    """The map w ⊙ (x − blur) is exact: the change is minus the sum of what is removed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 4)).double().eval()
    images, substrate = torch.randn(2, 5, 3, 12, 12, dtype=torch.float64)
    target = [0, 1, 2, 3, 0]
    maps = model[1].weight[target].view_as(images).detach() * (images - substrate)
    found = removal(model, images, target, maps, substrate=substrate)
    pixels = maps.sum(1).flatten(1)
    strongest = pixels.sort(1, descending=True).values[:, :14].clamp(min=0).sum(1)
    weakest = pixels.sort(1).values[:, :14].clamp(max=0).sum(1)
    torch.testing.assert_close(found.score_without_positive - found.score, -strongest)
    torch.testing.assert_close(found.score_without_negative - found.score, -weakest)
    assert found.red_true.mean() == found.blue_true.nanmean() == 1


@pytest.mark.parametrize("size", [1, 3, 64])
def test_a_batch_is_a_loop(size: int) -> None:
    torch.manual_seed(0)
    model = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
        .double()
        .eval()
    )
    images, maps = torch.randn(2, 4, 3, 8, 8, dtype=torch.float64)
    maps[1] = maps[1].abs()
    together = removal(model, images, [0, 1, 2, 3], maps, internal_batch_size=size)
    alone = [removal(model, images[k : k + 1], k, maps[k : k + 1]) for k in range(4)]
    for name, values in vars(together).items():
        torch.testing.assert_close(values, torch.cat([getattr(one, name) for one in alone]))


def test_a_function_as_target_sees_the_outputs() -> None:
    found = removal(MODEL, IMAGE, lambda o: 2 * o[0] - o[1], IMAGE, substrate="zero")
    assert found.score.tolist() == found.probability.tolist() == [2.0]
    assert found.score_without_positive.tolist() == [-4.0]
    assert found.probability_without_positive.tolist() == [-4.0]


def test_the_mean_and_a_function_as_substrate() -> None:
    found = removal(MODEL, IMAGE, 0, IMAGE, substrate="mean")
    assert found.score_without_positive.tolist() == [pytest.approx(1 - 3 + 1 / 6)]
    seen: list[list[bool]] = []

    def remember(inputs: Tensor, mask: Tensor) -> Tensor:
        assert torch.equal(inputs, IMAGE)
        seen.append(mask.flatten().tolist())
        return torch.full_like(inputs, 10.0)

    found = removal(MODEL, IMAGE, 0, IMAGE, substrate=remember)
    assert found.score_without_positive.tolist() == [8.0]  # 3 becomes 10
    assert found.score_without_negative.tolist() == [15.0]  # −4 becomes 10
    assert [mask.index(True) for mask in seen] == [0, 5]
    assert [sum(mask) for mask in seen] == [1, 1]
    removal(MODEL, IMAGE, 0, torch.zeros_like(IMAGE), substrate=remember)
    assert len(seen) == 2  # there was nothing to replace


def test_equal_pixels_are_taken_from_the_top_left() -> None:
    assert sign_mask(torch.ones(1, 1, 2, 3), IMAGE, 1, share=1 / 3).flatten().tolist() == [
        *(True, True, False),
        *(False, False, False),
    ]


def test_maps_of_whole_numbers_have_opposites_too() -> None:
    """128 is not an int8, nor is −1 a uint8."""
    maps = torch.tensor([[[[3, 0, 0], [2, -1, -128]]]], dtype=torch.int8)
    found = removal(MODEL, IMAGE, 0, maps, substrate="zero")
    assert found.score_without_positive.tolist() == [-2.0]
    assert found.score_without_negative.tolist() == [5.0]
    unsigned = removal(MODEL, IMAGE, 0, maps.clamp(min=0).to(torch.uint8), share=None)
    assert unsigned.negative_removed.tolist() == [0.0]


def test_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(12, 2))
    mean = model[1].running_mean.clone()
    with pytest.warns(UserWarning, match="training mode"):
        found = removal(model, IMAGE, 0, IMAGE)
    assert model.training
    assert torch.equal(model[1].running_mean, mean)
    assert not found.score_without_positive.requires_grad


def test_what_has_no_score() -> None:
    for share in (0, 1.5, -0.1, "half"):
        with pytest.raises(InputError, match="share must be above 0 and at most 1, or None"):
            removal(MODEL, IMAGE, 0, IMAGE, share=share)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="internal_batch_size must be a whole number"):
        removal(MODEL, IMAGE, 0, IMAGE, internal_batch_size=0)
    with pytest.raises(InputError, match="no activation 'relu'"):
        removal(MODEL, IMAGE, 0, IMAGE, activation="relu")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'zero', 'blur', 'mean'"):
        removal(MODEL, IMAGE, 0, IMAGE, substrate="grey")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="does not fit inputs"):
        removal(MODEL, IMAGE, 0, torch.zeros(1, 1, 3, 3))
    with pytest.raises(InputError, match="attribution must be a tensor"):
        removal(MODEL, IMAGE, 0, IMAGE.numpy())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="contains NaN"):
        removal(MODEL, IMAGE, 0, IMAGE * torch.nan)
    with pytest.raises(InputError, match="2 targets were given for 1 images"):
        removal(MODEL, IMAGE, [0, 1], IMAGE)
    with pytest.raises(TargetError, match="class 7 is out of range"):
        removal(MODEL, IMAGE, 7, IMAGE)


def test_substrate_functions_that_return_no_images() -> None:
    with pytest.raises(InputError, match=r"returns images of the same shape, .*, not NoneType"):
        removal(MODEL, IMAGE, 0, IMAGE, substrate=lambda _x, _mask: None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"not shape \(1, 1, 9, 9\)"):
        removal(MODEL, IMAGE, 0, IMAGE, substrate=lambda _x, _mask: torch.zeros(1, 1, 9, 9))
