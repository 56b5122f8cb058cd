"""Colours that the model has confirmed: windows, removals, and maps whose signs are known."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dmbp
from dmbp.decompose.details import DETAILS, box_mean, gaussian
from dmbp.decompose.places import window_for
from dmbp.decompose.removal import PROGRESS_STEPS, has_rivals, rival_weights
from dmbp.decompose.settings import WindowTest
from dmbp.decompose.tested import (
    NEGLIGIBLE,
    Run,
    confirm_colours,
    first_choice,
    moved_elsewhere,
    scaled_to,
    strongest,
    try_others,
)
from dmbp.decompose.windows import windows_near, windows_over
from dmbp.engine import input_gradients
from dmbp.errors import InputError
from dmbp.linear import Linearizer, Question
from dmbp.targets import BoundTarget, Value
from tests import nets
from tests.tolerance import BATCH, relative

SIZE = 32


class Planted(nn.Module):
    """Scores an image by its top left quarter, minus half of its bottom right quarter."""

    def __init__(self, channels: int = 3, negative: float = -0.5) -> None:
        super().__init__()
        weight = torch.zeros(1, channels, SIZE, SIZE)
        weight[..., : SIZE // 2, : SIZE // 2] = 1.0
        weight[..., SIZE // 2 :, SIZE // 2 :] = negative
        self.register_buffer("weight", weight / weight.clamp(min=0).sum())
        self.calls = 0
        self.images = 0

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_exporting():
            self.calls += 1
            self.images += len(x)
        score = (torch.relu(x) * self.weight).sum((1, 2, 3))
        return torch.stack([score, -score, score * 0 + 0.1], 1)


def bright(rows: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return 1 + 0.2 * torch.rand(rows, 3, SIZE, SIZE, generator=generator, dtype=torch.float64)


def explain(
    model: nn.Module, inputs: Tensor, target: Any = 0, **settings: Any
) -> dmbp.Decomposition:
    return dmbp.DMBP(model.double().eval(), **settings).explain(inputs, target=target)


def quarters(d: dmbp.Decomposition) -> tuple[Tensor, Tensor, Tensor]:
    """The map inside the positive quarter, inside the negative one, and elsewhere."""
    pixels, half = d.attribution.sum(1)[0], SIZE // 2
    elsewhere = pixels.clone()
    elsewhere[:half, :half] = elsewhere[half:, half:] = 0
    return pixels[:half, :half], pixels[half:, half:], elsewhere


def test_signs_and_sizes_are_those_of_a_known_rule() -> None:
    """A score of 1.1, made of 1.1 from one quarter and −0.55 from another."""
    inputs = bright()
    d = explain(Planted(), inputs, removal="zero", window=0.125)
    positive, negative, elsewhere = quarters(d)
    assert (positive.sum() / positive.clamp(min=0).sum()) == pytest.approx(1.0)
    assert negative.sum() < 0
    assert negative.clamp(min=0).sum() < 0.01 * positive.sum()
    assert elsewhere.abs().sum() < 0.25 * d.attribution.abs().sum()  # windows overlap the borders
    loss = float((inputs[..., : SIZE // 2, : SIZE // 2]).mean())
    gain = 0.5 * float((inputs[..., SIZE // 2 :, SIZE // 2 :]).mean())
    assert float(d.worth_for) == pytest.approx(loss, rel=1e-6)
    assert float(d.worth_against) == pytest.approx(gain, rel=1e-6)


def test_attributions_add_up_to_what_removal_measured() -> None:
    d = explain(Planted(), bright(2), removal="zero")
    assert d.tested is not None
    assert relative(d.positive.flatten(1).sum(1), d.worth_for) < 1e-9
    assert relative(d.negative.flatten(1).sum(1), -d.worth_against) < 1e-9
    assert (d.tested.change_without_positive < 0).all()
    assert (d.tested.change_without_negative > 0).all()
    assert d.tested.is_confirmed.all()


def test_the_outputs_without_a_colour_are_the_models() -> None:
    model, inputs = Planted().double().eval(), bright()
    d = explain(model, inputs, removal="zero")
    assert d.tested is not None
    pixels = d.attribution.sum(1)
    for sign, found in (
        (1, d.tested.outputs_without_positive),
        (-1, d.tested.outputs_without_negative),
    ):
        removed = torch.where(strongest(sign * pixels)[:, None], 0, inputs)
        assert relative(found, model(removed)) < 1e-12
    assert d.tested.outputs_without_positive[0, 0] < d.output[0]
    assert d.tested.outputs_without_control[0, 0] > d.tested.outputs_without_positive[0, 0]
    assert d.tested.outputs_without_negative[0, 0] > d.output[0]


def test_blue_that_is_not_true_is_not_shown() -> None:
    d = explain(Planted(negative=0.0), bright(), removal="zero")
    assert d.tested is not None
    assert not d.tested.has_negative.any()
    assert (d.attribution >= 0).all()
    assert d.worth_against.tolist() == [0.0]
    assert torch.equal(d.tested.change_without_negative, torch.zeros(1, 1, dtype=torch.float64))


def test_blue_must_be_confirmed_by_every_removal() -> None:
    """One removal says that the quarter speaks against the score, the other the opposite."""

    def brighten(images: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, 1.5 * images, images)

    both = explain(Planted(), bright(), removal=["zero", brighten])
    assert both.tested is not None
    assert both.tested.removals == ("zero", "brighten")
    assert not both.tested.has_negative.any()
    one = explain(Planted(), bright(), removal="zero")
    assert one.tested is not None
    assert one.tested.has_negative.all()


def test_a_batch_is_the_same_as_its_images_one_by_one() -> None:
    model, inputs = nets.ResidualNet().double(), torch.randn(3, 3, 24, 24, dtype=torch.float64)
    explainer = dmbp.DMBP(model.eval(), iterations=4)
    batch = explainer.explain(inputs, target=[0, 1, 2])
    for k in range(3):
        alone = explainer.explain(inputs[k : k + 1], target=k)
        assert relative(batch.attribution[k : k + 1], alone.attribution) <= BATCH
        assert torch.allclose(batch.worth_for[k : k + 1], alone.worth_for, rtol=BATCH, atol=1e-9)


def test_targets_of_every_kind() -> None:
    model, inputs = nets.ResidualNet().double(), torch.randn(1, 3, 24, 24, dtype=torch.float64)
    explainer = dmbp.DMBP(model.eval(), iterations=4)

    def difference(outputs: Tensor) -> Tensor:
        return outputs[1] - outputs[2]

    d = explainer.explain(inputs, target=[1, {1: 1.0, 2: -1.0}, difference])
    assert relative(d.attribution[1], d.attribution[2]) <= BATCH
    assert relative(d.attribution[:1], explainer.attribute(inputs, target=1)) <= BATCH


def test_images_with_several_targets_are_run_once_for_their_windows() -> None:
    model, inputs = Planted().double().eval(), bright()
    explainer = dmbp.DMBP(model, iterations=1)
    counts: list[int] = []
    for target in (0, 0, [0, 1]):
        model.images = 0
        explainer.explain(inputs, target=target)
        counts.append(model.images)
    assert counts[1] > 64 + 2 * 49  # windows, removed in two ways and alone
    assert counts[2] - counts[1] < 49


def test_windows_with_nothing_to_remove_are_not_run() -> None:
    model = Planted().double().eval()
    explainer = dmbp.DMBP(model, iterations=1, removal="zero")
    counts: list[int] = []
    half_black = bright()
    half_black[..., SIZE // 2 :, :] = 0
    for inputs in (bright(), bright(), half_black):
        model.images = 0
        explainer.explain(inputs, target=0)
        counts.append(model.images)
    # Three of the eight rows of windows that are removed, three of seven of those shown alone.
    assert counts[1] - counts[2] == 24 + 21


@pytest.mark.parametrize(
    ("shape", "windows", "side"),
    [
        ((1, 3, 224, 224), 49, (56, 56)),
        ((1, 3, 448, 300), 49, (112, 75)),
        ((1, 1, 2, 3), 6, (1, 1)),
        ((1, 4, 400), 39, (20,)),
        ((1, 1, 10, 20, 30), 64, (4, 8, 12)),
        ((1, 12), 12, (1,)),
        ((1, 1000), 125, (8,)),
    ],
)
def test_windows_cover_every_shape(
    shape: tuple[int, ...], windows: int, side: tuple[int, ...]
) -> None:
    found = windows_over(torch.zeros(shape), None, None)
    assert (len(found), found.side) == (windows, side)
    masks = found.masks(torch.arange(windows))
    assert masks.shape == (windows, *found.size)
    assert masks.any(0).all()
    assert set(masks.flatten(1).sum(1).tolist()) == {found.area}
    dense = masks.flatten(1).double()
    values = torch.randn(2, windows, dtype=torch.float64)
    mean = (values @ dense / dense.sum(0)).view(2, *found.size)
    assert relative(found.paint(values), mean) <= BATCH
    pixels = torch.randn(2, *found.size, dtype=torch.float64)
    assert relative(found.sums(pixels), pixels.flatten(1) @ dense.T) <= BATCH
    some = torch.tensor([[0, windows - 1], [windows // 2, 1]])
    assert torch.equal(found.masks(some), masks[some])


def test_windows_overlap_by_half() -> None:
    found = windows_over(torch.zeros(1, 3, 64, 64), None, None)
    first, second = found.masks(torch.arange(2))
    assert first.nonzero().amax(0).tolist() == [15, 15]
    assert second.nonzero().amin(0).tolist() == [0, 8]


def test_smaller_windows_lie_around_a_region() -> None:
    mask = torch.zeros(40, 60, dtype=torch.bool)
    mask[2:6, 30:38] = True
    near = windows_near(mask, (4, 4))
    covered = near.masks(torch.arange(len(near))).any(0)
    expected = torch.zeros_like(mask)
    expected[:14, 22:46] = True  # two windows on each side, as far as the image goes
    assert torch.equal(covered, expected)
    painted = near.paint(torch.ones(1, len(near)))[0]
    assert torch.equal(painted, expected.float())


class Corner(nn.Module):
    """Outputs the brightness of a square, and that of all pixels."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.relu()
        return torch.stack([x[..., 18:22, 18:22].sum((1, 2, 3)), x.sum((1, 2, 3))], 1)


def test_the_worth_of_a_small_region_is_found_more_exactly() -> None:
    """What is asked about is a square of 4 × 4 pixels; windows of a tenth of the side are as large.

    A row without a region is the same beside it as alone.
    """
    region = torch.zeros(40, 40, dtype=torch.bool)
    region[18:22, 18:22] = True

    def share(where: Tensor | None) -> tuple[float, Tensor]:
        target = BoundTarget(Value(0), "a", weights=torch.tensor([1.0, 0]), region=where)
        target = target if where is not None else replace(target, is_local=True)
        plain = BoundTarget(Value(1), "b", weights=torch.tensor([0, 1.0]))
        found = dmbp.DMBP(Corner().eval(), iterations=1, removal="zero", floor=1.0).explain(
            torch.ones(1, 1, 40, 40), target=[target, plain]
        )
        red = found.attribution[0, 0].clamp(min=0)
        return float(red[region].sum() / red.sum()), found.attribution[1]

    (coarse, other), (fine, same) = share(None), share(region)
    assert fine > max(0.9, coarse)
    assert torch.equal(other, same)


@pytest.mark.parametrize(
    ("size", "region", "is_local", "side"),
    [
        ((64, 64), None, False, None),
        ((64, 64), None, True, (6, 6)),
        ((64, 64), (20, 20), False, (6, 6)),
        ((64, 64), (40, 40), True, None),  # where it looks is known
        ((48, 320), None, True, (24, 24)),
        ((320, 48), (24, 24), False, (24, 24)),
        ((32, 32, 32), None, True, None),
        ((500,), None, True, None),
    ],
)
def test_targets_that_look_at_a_part_have_small_windows(
    size: tuple[int, ...],
    region: tuple[int, int] | None,
    is_local: bool,
    side: tuple[int, int] | None,
) -> None:
    mask = None
    if region is not None:
        mask = torch.zeros(size, dtype=torch.bool)
        mask[: region[0], : region[1]] = True
    target = BoundTarget(Value(0), "it", region=mask, is_local=is_local)
    shares = window_for(target, size)
    found = windows_over(torch.zeros(1, 1, *size), shares, None)
    expected = windows_over(torch.zeros(1, 1, *size), None, None) if side is None else side
    assert found.side == (expected if isinstance(expected, tuple) else expected.side)
    assert window_for(3, size) is None


@pytest.mark.parametrize("shape", [(2, 4, 60), (2, 9), (1, 3, 40, 28), (1, 2, 8, 8, 8)])
def test_inputs_of_every_dimension(shape: tuple[int, ...]) -> None:
    """Each channel, or entry, has a weight of its own sign."""
    weight = torch.linspace(-1, 2, shape[1], dtype=torch.float64)
    weight = weight.view(-1, *(1,) * (len(shape) - 2))

    class Weighted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            score = (torch.relu(x) * weight).flatten(1).sum(1)
            return torch.stack([score, -score], 1)

    inputs = 1 + torch.rand(shape, dtype=torch.float64)
    d = dmbp.DMBP(Weighted().eval(), removal="zero").explain(inputs, target=0)
    assert d.attribution.shape == shape
    assert torch.isfinite(d.attribution).all()
    assert d.attribution.abs().sum() > 0
    if len(shape) == 2:  # a test of every entry by itself is exact
        assert relative(d.attribution, inputs * weight) < 1e-3


def test_bad_settings_are_one_sentence() -> None:
    model, inputs = nets.ResidualNet().eval(), torch.randn(1, 3, 16, 16)
    for settings, sentence in [
        ({"stride": 0}, "stride is a share of the input's side, above 0 and at most 1, not 0"),
        ({"window": 1.5}, "window is a share of the input's side, above 0 and at most 1"),
        ({"contexts": 3}, "contexts must be 1 or 2, not 3"),
        ({"floor": 2}, "floor must be from 0 to 1"),
        ({"mixtures": 3}, "mixtures must be an even number from 0 to 1,000, not 3"),
        ({"mixtures": -2}, "mixtures must be an even number from 0 to 1,000, not -2"),
        ({"mixtures": 10**20}, "mixtures must be an even number from 0 to 1,000, not 1000"),
        ({"removal": "blurr"}, "removal must be 'blur', 'mean', 'zero', 'noise', a tensor"),
        ({"removal": 3}, "removal must be 'blur', 'mean', 'zero', 'noise', a tensor"),
        ({"preset": "fast", "window": 0.5}, "window belong to the preset 'tested'"),
        ({"combine": "sum"}, "combine belongs to the presets 'fast' and 'paper'"),
    ]:
        with pytest.raises(InputError, match=sentence):
            dmbp.DMBP(model, **settings)  # type: ignore[arg-type]
    for settings, sentence in [
        ({"window": 0.25, "stride": 0.5}, "stride=0.5 is larger than window=0.25"),
        ({"removal": torch.zeros(3, 5, 5)}, r"a removal of shape \(3, 5, 5\) does not fit inputs"),
        ({"removal": lambda images, mask: images[:, :1]}, "a removal function takes images"),
        ({"removal": lambda images, mask: images / 0}, "returned NaN or infinity"),
        ({"removal": lambda images: images}, "the removal function fails"),
    ]:
        with pytest.raises(InputError, match=sentence):
            dmbp.DMBP(model, iterations=1, **settings).explain(inputs, target=0)  # type: ignore[arg-type]
    large = torch.zeros(1, 3, 500, 500)
    with pytest.raises(InputError, match="windows; at most 4096 are tested, use a larger stride"):
        windows_over(large, 0.01, 0.001)


def test_a_name_a_tensor_and_a_function_remove_alike() -> None:
    model, inputs = nets.ResidualNet().double().eval(), torch.randn(2, 3, 16, 16).double()
    grey = torch.full((3, 16, 16), 0.0, dtype=torch.float64)

    def blacken(images: Tensor, mask: Tensor) -> Tensor:
        assert mask.shape == (len(images), 1, 16, 16)
        return images.masked_fill(mask, 0.0)

    maps = [
        dmbp.DMBP(model, iterations=2, removal=removal).attribute(inputs, target=0)
        for removal in ("zero", grey, blacken)
    ]
    assert relative(maps[1], maps[0]) <= BATCH
    assert relative(maps[2], maps[0]) <= BATCH


def test_the_map_names_its_detail_and_a_floor_fixes_it() -> None:
    model, inputs = nets.ResidualNet().eval(), torch.randn(2, 3, 16, 16)
    free = dmbp.DMBP(model, iterations=2).explain(inputs, target=0).tested
    assert free is not None
    assert all(0 <= k < len(DETAILS) for k in free.detail.tolist())
    fixed = dmbp.DMBP(model, iterations=2, floor=1.0).explain(inputs, target=0).tested
    assert fixed is not None
    assert fixed.detail.tolist() == [0, 0]


def test_progress_is_reported_a_fixed_number_of_times() -> None:
    calls: list[None] = []
    explainer = dmbp.DMBP(nets.ResidualNet().eval(), iterations=2)
    inputs = torch.zeros(2, 3, 16, 16)  # most windows have nothing to remove
    with pytest.warns(UserWarning, match="maps"):
        explainer.explain(inputs, target=0, on_iteration=lambda: calls.append(None))
    assert len(calls) == 2 + PROGRESS_STEPS


def test_worth_of_an_untested_map_is_refused() -> None:
    d = dmbp.DMBP(nets.ResidualNet().eval(), preset="fast", iterations=1).explain(
        torch.randn(1, 3, 16, 16), target=0
    )
    with pytest.raises(InputError, match="colours of this map were not tested"):
        _ = d.worth_for


def test_the_strongest_pixels_are_those_above_zero() -> None:
    pixels = torch.tensor([[[3.0, 0.0], [-1.0, 3.0]], [[-1.0, -2.0], [0.0, 0.0]]])
    assert strongest(pixels, 0.25).tolist() == [
        [[True, False], [False, False]],
        [[False, False], [False, False]],
    ]
    assert int(strongest(pixels, 1.0).sum()) == 2


def test_means_and_smoothing_keep_a_constant() -> None:
    ones = torch.ones(2, 9, 14)
    assert torch.allclose(box_mean(ones, (4, 40)), ones)
    assert torch.allclose(gaussian(ones, [0.1, 3.0]), ones)
    line = torch.tensor([[0.0, 0.0, 6.0, 0.0, 0.0]])
    assert torch.allclose(box_mean(line, (2,)), torch.tensor([[0.0, 2.0, 2.0, 2.0, 0.0]]))


def test_the_same_pattern_elsewhere() -> None:
    mask = torch.zeros(2, 4, 6, dtype=torch.bool)
    mask[0, 0, :2] = True
    found = moved_elsewhere(mask)
    assert found[0].nonzero().tolist() == [[2, 3], [2, 4]]
    assert not found[1].any()


def test_unconfirmed_colours_keep_the_scale_of_windows() -> None:
    pixels = torch.tensor([[1.0, 3.0], [1.0, 3.0]])
    scaled = scaled_to(pixels, torch.tensor([8.0, -1.0]), area=2.0)
    assert scaled.tolist() == [[2.0, 6.0], [0.5, 1.5]]


def test_places_worth_little_have_no_colour() -> None:
    """A quarter that is worth a hundredth of another one is not red."""
    model = Planted(negative=0.01)
    d = explain(model, bright(), removal="zero", window=0.125)
    _, faint, _ = quarters(d)
    assert faint.abs().max() < NEGLIGIBLE * d.attribution.max()
    significant = explain(Planted(negative=0.5), bright(), removal="zero", window=0.125)
    assert quarters(significant)[1].min() > 0


def test_pixels_without_a_colour_are_ordered_by_what_they_are_worth_to_the_rivals() -> None:
    class TwoClasses(nn.Module):
        """The left half speaks for one class, the last quarter for another."""

        def forward(self, x: Tensor) -> Tensor:
            columns = torch.relu(x).mean((1, 2))
            left, right = columns[:, : SIZE // 2].mean(1), columns[:, -SIZE // 4 :].mean(1)
            return torch.stack([left, right, 0 * left], 1)

    pixels = explain(TwoClasses(), bright(), removal="zero").attribution.sum(1)[0]
    assert (pixels >= 0).all()  # nothing speaks against the first class
    neutral, rival = pixels[:, SIZE // 2 + 5 : SIZE // 2 + 7], pixels[:, -4:]
    assert max(neutral.max(), rival.max()) < NEGLIGIBLE * pixels.max()
    assert rival.max() < 0.5 * neutral.min()


def test_rivals_are_the_classes_that_the_target_does_not_name() -> None:
    outputs = torch.tensor([[5.0, 2.0, 2.0], [0.0, 1.0, -1.0]]).double()
    weights = torch.tensor([[1.0, 0.0, 0.0], [1.0, -1.0, 0.0]]).double()
    assert rival_weights(outputs, weights).tolist() == [[0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]
    assert has_rivals(weights)
    assert not has_rivals(None)
    assert not has_rivals(weights[:, :1])  # no other class


class Scores:
    """Known scores: shown alone, the left pixel restores most; removed, it raises the first one."""

    def __init__(self) -> None:
        self.score = torch.tensor([4.0, 4.0])
        self.empty_score = torch.tensor([[0.0], [0.0]])
        self.tested = range(1)
        self.worth = torch.tensor([[[-3.0, 1.0, 0.5]], [[3.0, 1.0, 0.5]]])

    def scores(self, changes: list[tuple[int, Tensor]]) -> Tensor:
        shown = torch.tensor([[3.0, 2.0, 1.0]])
        return torch.stack([(shown * ~mask).sum((1, 2)) for _, mask in changes], 1)

    def without(self, mask: Tensor, rows: Tensor | None = None) -> Tensor:
        rows = torch.arange(2) if rows is None else rows
        return (self.score[rows] - (self.worth[rows] * mask).sum((1, 2)))[:, None]


def test_a_detail_without_whose_pixels_the_score_does_not_fall_is_not_chosen() -> None:
    candidates = torch.eye(3).view(1, 3, 1, 3).repeat(2, 1, 1, 1)
    scores: Any = Scores()
    found = first_choice(scores, candidates, candidates[:, 0])
    assert found.chosen.tolist() == [0, 0]
    try_others(scores, found)
    assert found.chosen.tolist() == [1, 0]
    assert found.of_chosen(found.red).tolist() == [[[0.0, 1.0, 0.0]], [[1.0, 0.0, 0.0]]]
    assert found.without.tolist() == [[3.0], [1.0]]


def test_windows_may_be_run_in_fewer_bits_but_nothing_else() -> None:
    model, inputs = Planted().double().eval(), bright()
    linearizer = Linearizer(model)
    inputs, outputs, rows = linearizer.runner.target_rows(inputs, 0)
    question = Question(linearizer, inputs, rows, images=1, known_outputs=outputs)
    streams = inputs.clone(), -inputs.clone()
    counts = {"rough": 0, "exact": 0}

    def run(name: str, images: Tensor) -> Tensor:
        counts[name] += len(images)
        return linearizer.runner.outputs(images)

    factor = 1.01

    def rough(images: Tensor) -> Tensor:
        return factor * run("rough", images)  # a score that is too high, as rounding may make it

    def ways(rough: Callable[[Tensor], Tensor] | None) -> Run:
        return Run(
            partial(run, "exact"),
            partial(input_gradients, linearizer.runner.run),
            rough_outputs=rough,
        )

    found = [
        confirm_colours(question, streams, WindowTest(), removals=("zero",), run=ways(way))
        for way in (None, rough)
    ]
    assert counts["rough"] == 2 + 64 + 49  # the whole image, nothing of it, and the windows
    assert relative(found[1].worth_for, found[0].worth_for) < 1e-12
    assert relative(found[1].attribution, found[0].attribution) < 1e-9
    factor, counts["exact"] = 1.2, 0  # too far off, so that all windows are run again
    confirm_colours(question, streams, WindowTest(), removals=("zero",), run=ways(rough))
    assert counts["exact"] > 64 + 49


def test_whether_fewer_bits_do_is_decided_for_each_row() -> None:
    """A map does not depend on what else is in the batch."""
    model = Planted().double().eval()
    linearizer = Linearizer(model)
    counts = {"exact": 0}

    def exact(images: Tensor) -> Tensor:
        counts["exact"] += len(images)
        return linearizer.runner.outputs(images)

    def rough(images: Tensor) -> Tensor:
        """Too far off where images are bright."""
        squares = (images**4).flatten(1).sum(1, keepdim=True)
        return linearizer.runner.outputs(images) + 1e-5 * squares

    def attribution(images: Tensor) -> Tensor:
        inputs, outputs, rows = linearizer.runner.target_rows(images, 0)
        question = Question(linearizer, inputs, rows, images=len(images), known_outputs=outputs)
        gradients = partial(input_gradients, linearizer.runner.run)
        run = Run(exact, gradients, rough_outputs=rough)
        counts["exact"] = 0
        streams = inputs.clone(), -inputs.clone()
        return confirm_colours(
            question, streams, WindowTest(), removals=("zero",), run=run
        ).attribution

    dim = bright()
    alone = attribution(dim)
    few = counts["exact"]
    together = attribution(torch.cat([dim, 3 * dim]))
    assert counts["exact"] == 2 * (few + 64 + 49)  # windows are run again
    assert relative(together[:1], alone) < 1e-9
