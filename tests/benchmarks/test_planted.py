"""The planted images: masks are what is drawn, labels follow the rule, and scores are right."""

from pathlib import Path

import numpy
import pytest
import torch
from benchmarks.planted.__main__ import find_questions, format_row, stack_masks, table_row, variants
from benchmarks.planted.images import (
    AGAINST,
    CLASSES,
    FOR,
    NEUTRAL,
    Scene,
    as_inputs,
    draw_scene,
    log_odds,
    mask_of,
    render,
)
from benchmarks.planted.networks import CNN, NETWORKS
from benchmarks.planted.picture import draw_maps
from benchmarks.planted.questions import Effects, Question, measure_effects, rates_of
from benchmarks.planted.scores import SCORES, Masks, is_unsigned, score_maps
from torch import Tensor, nn

import dmbp


def scenes(count: int, both: int | None = None) -> list[Scene]:
    random = numpy.random.default_rng(0)
    return [draw_scene(random, both=both) for _ in range(count)]


def confirmed(count: int) -> list[Question]:
    effects = Effects(4.0, -4.0, ())
    return [Question(scene, 1, effects) for scene in scenes(count, both=1)]


def test_a_mask_is_what_a_shape_changes() -> None:
    """Without a shape nothing outside its mask changes, and nearly everything inside does."""
    for scene in scenes(20):
        for k, thing in enumerate(scene.things):
            changed = (render(scene) != render(scene.without(k))).any(2)
            mask = mask_of(thing)
            assert not changed[~mask].any()
            assert changed[mask].mean() > 0.95


def test_shapes_do_not_overlap_and_are_a_fifth_to_a_third_of_the_side() -> None:
    for scene in scenes(50):
        masks = numpy.stack([mask_of(thing) for thing in scene.things])
        assert masks.sum(0).max() == 1
        assert all(96 / 5 <= thing.size <= 96 / 3 for thing in scene.things)


def test_no_texture_and_no_colour_has_one_meaning() -> None:
    kinds = {*FOR, *AGAINST, *NEUTRAL}
    assert len(kinds) == 12
    for role in (FOR, AGAINST, NEUTRAL):
        assert {kind.texture for kind in role} == {0, 1, 2, 3}
        assert {kind.hue for kind in role} == {0, 1, 2}
    for a, b in zip(FOR, AGAINST, strict=True):
        assert a.texture != b.texture
        assert a.hue != b.hue


def test_the_log_odds_follow_the_rule() -> None:
    for scene in scenes(50):
        before = torch.tensor(log_odds(scene))
        for k, thing in enumerate(scene.things):
            effect = before - torch.tensor(log_odds(scene.without(k)))
            right = [4 * (thing.kind == FOR[c]) - 4 * (thing.kind == AGAINST[c]) for c in range(4)]
            assert effect.tolist() == right
    assert log_odds(Scene((), 0)) == [-2.0] * CLASSES


def test_every_case_occurs_for_every_class_and_distractors_are_independent_of_it() -> None:
    cases = torch.zeros(CLASSES, 2, 2)
    neutral = torch.zeros(CLASSES, 2, 2)
    for scene in scenes(4000):
        kinds = {thing.kind for thing in scene.things}
        for c in range(CLASSES):
            case = c, int(FOR[c] in kinds), int(AGAINST[c] in kinds)
            cases[case] += 1
            neutral[case] += sum(kind in kinds for kind in NEUTRAL)
    # A class may have its shapes in every second scene, and then each case in a quarter of them.
    expected = torch.tensor([[0.625, 0.125], [0.125, 0.125]]).expand(CLASSES, 2, 2)
    torch.testing.assert_close(cases / 4000, expected, atol=0.03, rtol=0)
    torch.testing.assert_close(neutral / cases, torch.full_like(cases, 1.5), atol=0.1, rtol=0)


def test_a_scene_is_drawn_from_its_seed() -> None:
    first, second = scenes(3), scenes(3)
    assert first == second
    assert (render(first[0]) == render(second[0])).all()
    grounds = [render(Scene((), scene.ground)) for scene in first]
    assert (grounds[0] != grounds[1]).any()


def ideal_maps(masks: Masks) -> Tensor:
    return (masks.a.double() - masks.b.double())[:, None]


def test_an_ideal_map_has_every_score_right() -> None:
    masks = stack_masks(confirmed(5))
    found = score_maps(ideal_maps(masks), masks)
    assert tuple(found) == SCORES
    right = [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    assert [scores.tolist() for scores in found.values()] == [[score] * 5 for score in right]
    found = score_maps(-ideal_maps(masks), masks)
    assert all(scores.sum() == 0 for scores in found.values())


def test_noise_has_shares_near_the_areas() -> None:
    masks = stack_masks(confirmed(200))
    found = score_maps(torch.randn(200, 3, 96, 96), masks)
    areas = masks.areas()
    assert sum(areas.values()).allclose(torch.ones(200, dtype=torch.float64))
    close = {"positive on A": "A", "negative on B": "B", "on distractors": "distractors"}
    for name, region in {**close, "on ground": "ground"}.items():
        assert float((found[name] - areas[region]).abs().mean()) < 0.01, name
    assert abs(float(found["sign accuracy"].mean()) - 0.5) < 0.08
    assert abs(float(found["signed mass"].mean()) - 0.5) < 0.01


def test_masks_by_hand() -> None:
    """Two pixels of A, one of B, one of a distractor, two of ground."""
    rows = [[True, True, False], [False, False, False]], [[False, False, True], [False] * 3]
    a, b = (torch.tensor([row]) for row in rows)
    distractors = torch.tensor([[[False] * 3, [True, False, False]]])
    maps = torch.tensor([[[[3.0, -1.0, -2.0], [1.0, 0.0, -3.0]]]])
    found = score_maps(maps, Masks(a, b, distractors))
    right = [3 / 4, 2 / 6, 1 / 10, 3 / 10, 1.0, 7 / 8]
    assert [float(scores) for scores in found.values()] == pytest.approx(right)


def test_maps_without_negative_values_have_a_dash() -> None:
    masks = stack_masks(confirmed(3))
    maps = torch.rand(3, 1, 96, 96)
    assert is_unsigned(maps)
    assert not is_unsigned(maps - 0.5)
    row = table_row(score_maps(maps, masks), is_unsigned(maps), seconds=1.0)
    assert row["sign accuracy"]["mean"] == row["signed mass"]["mean"] == 0.5
    assert format_row("rise", row).split(" | ")[2] == "–"


class Reader(nn.Module):
    """Sums the picture over two regions: one speaks for class 1, the other against it."""

    def __init__(self, masks: tuple[Tensor, Tensor]) -> None:
        super().__init__()
        self.difference = masks[0].float() - masks[1].float()

    def forward(self, x: Tensor) -> Tensor:
        score = (x * self.difference).sum((1, 2, 3))
        return torch.stack([score * 0, score, score * 0, score * 0], 1)


def test_effects_are_measured_by_removing_each_shape() -> None:
    (scene,) = scenes(1, both=1)
    a, b, _ = confirmed(1)[0].masks()
    network = Reader((a, b))
    a_index, b_index = scene.find(FOR[1]), scene.find(AGAINST[1])
    whole = network(as_inputs([render(scene)]))[0, 1]
    without = [network(as_inputs([render(scene.without(k))]))[0, 1] for k in (a_index, b_index)]
    found = measure_effects(network, scene, 1)
    assert found.a == pytest.approx(float(whole - without[0]), abs=1e-3)
    assert found.b == pytest.approx(float(whole - without[1]), abs=1e-3)
    assert found.distractors == (0.0,) * (len(scene.things) - 2)


def test_only_confirmed_questions_are_judged() -> None:
    assert Effects(2.0, -2.0, (1.0, -1.0)).confirmed()
    for effects in (Effects(1.9, -2, ()), Effects(2, -1.9, ()), Effects(2, -2, (0.0, -1.1))):
        assert not effects.confirmed()
    rates = rates_of([Effects(3.0, -3.0, (0.5,)), Effects(1.0, -3.0, (2.0, 0.5))])
    assert (rates.a, rates.b, rates.distractors) == (0.5, 1.0, 2 / 3)
    assert not rates.follows_rule()
    with pytest.raises(SystemExit, match="follows the rule on no image"):
        find_questions(CNN().eval(), 1)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_networks_can_be_explained(name: str) -> None:
    network = NETWORKS[name].make().eval()
    inputs = as_inputs([render(scene) for scene in scenes(2)])
    frozen = dmbp.linearize(network, inputs, target=1)
    torch.testing.assert_close(frozen.value(), network(inputs)[:, 1], atol=1e-4, rtol=1e-4)


def test_every_method_is_judged() -> None:
    labels = [label for name in dmbp.methods() for label, _ in variants(name, None)]
    assert set(labels) == {*dmbp.methods(), "gradcam signed"}
    assert dict(variants("rise", 7))["rise"] == {"activation": "sigmoid", "masks": 7}


def test_the_picture_has_a_row_for_each_question(tmp_path: Path) -> None:
    questions = confirmed(2)
    maps = ideal_maps(stack_masks(questions))[:, 0]
    figure = draw_maps(questions, {"ideal": maps, "opposite": -maps})
    assert [axis.get_title() for axis in figure.axes] == ["class 1", "ideal", "opposite"] * 2
    figure.savefig(tmp_path / "maps.png")
