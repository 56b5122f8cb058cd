"""Deletion and complementary insertion against curves worked out by hand; the blur's weights."""

import pytest
import torch
from torch import Tensor, nn

from dmbp.baseline import blur_weights
from dmbp.errors import InputError, TargetError
from dmbp.metrics import (
    area,
    complementary_insertion,
    deletion,
    deletion_curve,
    insertion,
    insertion_curve,
)
from tests.metrics.test_insertion import IMAGE, Brightness


class ThreeSums(nn.Module):
    """Class 0 is the left column's sum, class 1 the right column's, class 2 minus the whole."""

    def forward(self, x: Tensor) -> Tensor:
        left, right = x[..., 0].sum((1, 2)), x[..., 1].sum((1, 2))
        return torch.stack([left, right, -left - right], 1)


def identity(outputs: Tensor) -> Tensor:
    return outputs


def test_deletion_by_hand() -> None:
    """Pixels 3, 2, 0, −1 go out one by one: sums 4, 1, −1, −1, 0."""
    curve = deletion_curve(
        Brightness().eval(), IMAGE, 0, IMAGE, steps=4, substrate="zero", activation=identity
    )
    assert curve.tolist() == [[4.0, 1.0, -1.0, -1.0, 0.0]]
    score = deletion(
        Brightness().eval(), IMAGE, 0, IMAGE, steps=4, substrate="zero", activation=identity
    )
    assert score.tolist() == [(2.0 + 1 - 1 - 1 + 0) / 4]


def test_deletion_is_insertion_seen_from_the_other_end() -> None:
    """Taking the strongest out leaves what putting the weakest in shows."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).double().eval()
    images, maps = torch.randn(2, 5, 3, 2, 2, dtype=torch.float64)
    out = deletion_curve(model, images, 1, maps, steps=4)
    put_in = insertion_curve(model, images, 1, -maps, steps=4)
    torch.testing.assert_close(out, put_in.flip(1))


def test_complementary_insertion_by_hand() -> None:
    """Asked about class 0 with itself as the map; the others are 1 and 2.

    The weakest go in first: −1 (right), 0 (right), 2, 3 (left). Class 1: 0 −1 −1 −1 −1; class 2:
    0 1 1 −1 −4; their mean 0, 0, 0, −1, −2.5.
    """
    found = complementary_insertion(
        ThreeSums().eval(),
        IMAGE,
        [[1, 2]],
        IMAGE,
        steps=4,
        substrate="zero",
        activation=identity,
    )
    assert found.tolist() == [pytest.approx((0 + 0 + 0 - 1 - 1.25) / 4)]


def test_the_mean_over_other_classes_is_that_of_their_areas() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4)).double().eval()
    images, maps = torch.randn(2, 3, 3, 2, 2, dtype=torch.float64)
    both = complementary_insertion(model, images, [[1, 3]] * 3, maps, activation="sigmoid")
    each = [insertion(model, images, k, -maps, activation="sigmoid") for k in (1, 3)]
    torch.testing.assert_close(both, (each[0] + each[1]) / 2)


def test_maps_of_whole_numbers_have_opposites_too() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4)).eval()
    images, maps = torch.randn(2, 3, 2, 2), torch.randint(0, 4, (2, 1, 2, 2), dtype=torch.uint8)
    found, expected = (
        complementary_insertion(model, images, [[1]] * 2, given) for given in (maps, maps.float())
    )
    assert torch.equal(found, expected)


def test_an_image_without_other_classes_has_no_score() -> None:
    with pytest.raises(TargetError, match="at least one other class"):
        complementary_insertion(ThreeSums().eval(), IMAGE, [[]], IMAGE)


def test_the_mean_as_substrate() -> None:
    """The first step shows the image's mean, 1, in all four pixels."""
    curve = insertion_curve(
        Brightness().eval(), IMAGE, 0, IMAGE, steps=4, substrate="mean", activation=identity
    )
    assert curve.tolist() == [[4.0, 6.0, 7.0, 6.0, 4.0]]


def test_a_constant_map_is_scored_from_the_top_left() -> None:
    ones = torch.ones_like(IMAGE)
    curve = insertion_curve(
        Brightness().eval(), IMAGE, 0, ones, steps=4, substrate="zero", activation=identity
    )
    assert curve.tolist() == [[0.0, 3.0, 2.0, 4.0, 4.0]]


def test_a_function_as_target_sees_the_outputs() -> None:
    curve = insertion_curve(
        Brightness().eval(), IMAGE, lambda o: 2 * o[0], IMAGE, steps=4, substrate="zero"
    )
    assert curve.tolist() == [[0.0, 6.0, 10.0, 10.0, 8.0]]


def test_a_model_in_training_mode_is_scored_as_it_evaluates() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5))
    images = torch.randn(2, 3, 8, 8)
    mean = model[1].running_mean.clone()
    with pytest.warns(UserWarning, match="training mode"):
        trained = insertion(model, images, 0, images)
    assert torch.equal(model[1].running_mean, mean)
    assert torch.equal(trained, insertion(model.eval(), images, 0, images))


def test_the_blur_is_rises() -> None:
    """11 × 11, nearly a box: its largest weight 1.14 times its smallest, as filtered by scipy."""
    from scipy.ndimage import gaussian_filter

    delta = torch.zeros(11, 11, dtype=torch.float64)
    delta[5, 5] = 1
    theirs = torch.from_numpy(gaussian_filter(delta.numpy(), 5))  # borders reflect by default
    ours = torch.outer(blur_weights(), blur_weights())
    torch.testing.assert_close(ours, theirs)
    assert float(ours.max() / ours.min()) == pytest.approx(1.14, abs=0.005)


def test_maps_of_another_size_are_refused() -> None:
    with pytest.raises(InputError, match="does not fit inputs"):
        deletion(Brightness().eval(), IMAGE, 0, torch.zeros(1, 1, 3, 3))
    with pytest.raises(InputError, match="pixels can be ordered in images"):
        insertion(Brightness().eval(), torch.zeros(2, 7), 0, torch.zeros(2, 7))


def test_the_area_counts_ends_half() -> None:
    assert area(torch.tensor([[2.0, 1.0, 4.0]])).tolist() == [2.0]


def test_misspelt_options_are_refused() -> None:
    with pytest.raises(InputError, match="no option 'subtrate'; did you mean 'substrate'"):
        insertion(Brightness().eval(), IMAGE, 0, IMAGE, subtrate="zero")  # type: ignore[call-arg]
    with pytest.raises(InputError, match="steps must be a whole number of 1 or more"):
        insertion(Brightness().eval(), IMAGE, 0, IMAGE, steps=2.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="activation must be a name or a function"):
        insertion(Brightness().eval(), IMAGE, 0, IMAGE, activation=None)  # type: ignore[arg-type]


def test_a_single_output_is_a_yes_or_no() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 1)).eval()
    softmax, sigmoid = (
        insertion(model, IMAGE, 0, IMAGE, substrate="zero", activation=activation)
        for activation in ("softmax", "sigmoid")
    )
    assert torch.equal(softmax, sigmoid)
    assert 0 < float(softmax) < 1


def test_other_classes_given_as_a_tensor() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
    listed = complementary_insertion(model, IMAGE, [[1, 1]], IMAGE)
    assert torch.equal(complementary_insertion(model, IMAGE, torch.tensor([[1, 1]]), IMAGE), listed)
    with pytest.raises(TargetError, match="others must be a list of class indices"):
        complementary_insertion(model, IMAGE, [1], IMAGE)  # type: ignore[list-item]


def test_maps_that_are_no_tensors_or_have_other_channels() -> None:
    with pytest.raises(InputError, match="attribution must be a tensor"):
        insertion(Brightness().eval(), IMAGE, 0, IMAGE.numpy())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="does not fit inputs"):
        insertion(Brightness().eval(), IMAGE, 0, torch.zeros(1, 9, 2, 2))
