"""Insertion, deletion and complementary insertion against curves worked out by hand."""

import pytest
import torch
from torch import Tensor, nn

from dmbp.errors import InputError, TargetError
from dmbp.metrics import (
    area,
    complementary_insertion,
    deletion,
    deletion_curve,
    insertion,
    insertion_curve,
    pixel_ranks,
    replace_pixels,
)


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


def test_another_way_to_run_the_model() -> None:
    model, shapes = Brightness().eval(), list[int]()

    def run(images: Tensor) -> Tensor:
        shapes.append(len(images))
        return 2 * model(images)

    curve = insertion_curve(
        model, IMAGE, 0, IMAGE, steps=4, substrate=None, activation="none", run=run
    )
    assert curve.tolist() == [[0.0, 6.0, 10.0, 10.0, 8.0]]
    assert shapes == [5]


def test_a_function_as_activation() -> None:
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


def test_equal_pixels_are_ordered_from_the_top_left() -> None:
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


def test_the_area_counts_both_ends_half() -> None:
    assert area(torch.linspace(0, 1, 11)[None]).item() == pytest.approx(0.5)
    assert area(torch.tensor([[2.0, 1.0, 4.0]])).tolist() == [2.0]


def test_the_strongest_pixels_are_replaced_first() -> None:
    back = torch.full_like(IMAGE, 9.0)
    ranks = pixel_ranks(IMAGE, IMAGE)
    mixed = [replace_pixels(IMAGE, back, ranks, torch.tensor([share])) for share in (0.25, 0.75)]
    assert mixed[0].flatten().tolist() == [3.0, 9.0, 9.0, 9.0]
    assert mixed[1].flatten().tolist() == [3.0, 9.0, 2.0, 0.0]


def test_what_has_no_score() -> None:
    with pytest.raises(InputError, match="does not fit inputs"):
        deletion(Brightness().eval(), IMAGE, 0, torch.zeros(1, 1, 3, 3))
    with pytest.raises(InputError, match="pixels can be ordered in images"):
        insertion(Brightness().eval(), torch.zeros(7), 0, torch.zeros(7))
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
    """The target is class 0, the map is the image itself, and the other classes are 1 and 2.

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


def test_a_model_in_training_mode_is_scored_in_evaluation_mode() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5))
    images = torch.randn(2, 3, 8, 8)
    mean = model[1].running_mean.clone()
    with pytest.warns(UserWarning, match="training mode"):
        trained = insertion(model, images, 0, images)
    assert torch.equal(model[1].running_mean, mean)
    assert torch.equal(trained, insertion(model.eval(), images, 0, images))


def test_misspelt_options_are_refused() -> None:
    with pytest.raises(InputError, match="no option 'subtrate'; did you mean 'substrate'"):
        insertion(Brightness().eval(), IMAGE, 0, IMAGE, subtrate="zero")  # type: ignore[call-arg]
    with pytest.raises(InputError, match="steps must be a whole number of 1 or more"):
        insertion(Brightness().eval(), IMAGE, 0, IMAGE, steps=2.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="activation must be a name or a function"):
        insertion(Brightness().eval(), IMAGE, 0, IMAGE, activation=None)  # type: ignore[arg-type]


def test_a_single_output_is_yes_or_no() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 1)).eval()
    softmax, sigmoid = (
        insertion(model, IMAGE, 0, IMAGE, substrate="zero", activation=activation)
        for activation in ("softmax", "sigmoid")
    )
    assert torch.equal(softmax, sigmoid)
    assert 0 < float(softmax) < 1


def test_other_classes_as_a_tensor() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
    listed = complementary_insertion(model, IMAGE, [[1, 1]], IMAGE)
    assert torch.equal(complementary_insertion(model, IMAGE, torch.tensor([[1, 1]]), IMAGE), listed)
    with pytest.raises(TargetError, match="others must be a list of class indices"):
        complementary_insertion(model, IMAGE, [1], IMAGE)  # type: ignore[list-item]


def test_maps_of_another_type_or_number_of_channels() -> None:
    with pytest.raises(InputError, match="attribution must be a tensor"):
        insertion(Brightness().eval(), IMAGE, 0, IMAGE.numpy())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="does not fit inputs"):
        insertion(Brightness().eval(), IMAGE, 0, torch.zeros(1, 9, 2, 2))
