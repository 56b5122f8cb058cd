"""The sentence below a picture says what the model said, and nothing more."""

from dataclasses import replace

import pytest
import torch

import dmbp
from dmbp.decompose import Decomposition
from dmbp.render import PALETTES, ColourTest, Outcome
from dmbp.render.colour import RED_BLUE
from dmbp.render.colour_test import SIGNAL_WORDS, colour_tests, share_decimals
from tests import nets

WHOLE, FALLEN, RISEN = Outcome(3.9, 0.98), Outcome(-2.1, 0.11), Outcome(4.6, 0.991)


RED = "Without the tenth of the photo that is marked strongest in red, "
BLUE = "Without the tenth marked strongest in blue, "


def sentence(test: ColourTest) -> str:
    return test.sentence(RED_BLUE)


def test_it_falls_without_red_and_rises_without_blue() -> None:
    test = ColourTest("cat", Outcome(0.0, 0.5), FALLEN, Outcome(9.0, 0.999), Outcome(-0.1, 0.49))
    assert sentence(test) == (
        f"{RED}cat falls from 50% to 11% (the same pattern elsewhere: 49%). {BLUE}it rises to 100%."
    )
    assert test.title(1, RED_BLUE) == "without pixels marked red\ncat 50% → 11%"
    assert test.title(0, RED_BLUE) == "control: the same pattern elsewhere\ncat 50% → 49%"
    assert test.shown == [1, -1]
    other = test.sentence(PALETTES["purple-orange"])
    assert "marked strongest in purple, cat" in other
    assert "marked strongest in orange, it" in other
    assert "marked orange" in test.title(-1, PALETTES["purple-orange"])


def test_fewer_pixels_than_a_tenth_are_counted() -> None:
    test = ColourTest("cat", WHOLE, FALLEN, Outcome(9.0, 1.0), shares=(0.1, 0.042))
    assert "Without the 4% of the photo that is marked blue, it " in sentence(test)
    few = replace(test, shares=(0.0031, 0.1))
    assert sentence(few).startswith("Without the 0.3% of the photo that is marked red, cat ")


def test_small_changes_are_called_that_and_come_with_scores() -> None:
    test = ColourTest("cat", WHOLE, FALLEN, RISEN)
    said = f"{BLUE}it stays near 98% (98% → 99%), but its score rises from 3.9 to 4.6."
    assert sentence(test).endswith(said)
    assert test.title(-1, RED_BLUE) == "without pixels marked blue\ncat 98% → 99%\nscore 3.9 → 4.6"
    assert test.shows_scores
    assert not ColourTest("cat", WHOLE, FALLEN, None).shows_scores


def test_decimals_tell_numbers_apart() -> None:
    sure = ColourTest(
        *("cat", Outcome(7.3, 0.9993), Outcome(4.3, 0.987), Outcome(9.1, 0.99989)),
        Outcome(7.2, 0.9991),
    )
    assert sentence(sure) == (
        f"{RED}cat stays near 99.9% (99.9% → 98.7%), but its score falls from 7.3 to 4.3 (the same "
        f"pattern elsewhere: 99.9%, score 7.2). {BLUE}it stays near 99.9% (99.9% → 100.0%), but "
        "its score rises from 7.3 to 9.1."
    )
    same = ColourTest("cat", Outcome(19.3, 1.0), Outcome(14.1, 1.0), None)
    assert f"{RED}cat stays near 100.0% (100.0% → 100.0%), but its score falls" in sentence(same)
    little = ColourTest("cat", Outcome(19.3, 1.0), Outcome(18.1, 1.0), None)
    assert f"{RED}cat hardly changes: 100.0% → 100.0%, score 19.3 → 18.1." in sentence(little)


def test_percentages_of_one_picture_have_the_same_decimals() -> None:
    sure = ColourTest("cat", Outcome(7.3, 0.9993), Outcome(6.3, 0.998), None)
    other = ColourTest("dog", WHOLE, FALLEN, None)
    assert "from 98% to 11%" in sentence(other)
    shared = share_decimals([sure, other])
    assert [test.decimals for test in shared] == [1, 1]
    assert "from 98.0% to 11.0%" in sentence(shared[1])
    assert shared[1].title(1, RED_BLUE).endswith("dog 98.0% → 11.0%")
    assert share_decimals([other])[0].decimals == 0


@pytest.mark.parametrize("score", [-2.1, -5.0, -1.6])
def test_a_control_that_does_as_much_is_said(score: float) -> None:
    test = ColourTest("cat", WHOLE, FALLEN, None, Outcome(score, 0.12))
    written = f"{score:.1f}".replace("-", "−")
    assert sentence(test) == (
        f"{RED}cat falls from 98% to 11%, score 3.9 → −2.1 (the same pattern elsewhere: 12%, score "
        f"{written}). The same pattern elsewhere lowers the score about as far: read the red with "
        "care. No part was found that speaks against cat."
    )
    assert test.shows_scores
    better = replace(test, without_control=Outcome(-1.4, 0.2))
    assert "care" not in sentence(better)
    refuted = replace(test, refuted=(1,))
    assert sentence(refuted).count("with care") == 1


def test_a_probability_that_moves_against_its_score_shows_both() -> None:
    test = ColourTest("cat", Outcome(3.0, 0.6), Outcome(2.0, 0.8), None)
    assert "cat rises from 60% to 80%, score 3.0 → 2.0." in sentence(test)


def test_scores_alone() -> None:
    test = ColourTest("class 3", Outcome(7.3), Outcome(-4.31), Outcome(1234.5), Outcome(7.1))
    assert sentence(test) == (
        f"{RED}the score of class 3 falls from 7.3 to −4.3 (the same pattern elsewhere: 7.1). "
        f"{BLUE}it rises to 1,234."
    )
    assert test.title(1, RED_BLUE) == "without pixels marked red\nscore 7.3 → −4.3"
    close = ColourTest("class 3", Outcome(7.31), Outcome(7.29), None)
    assert close.title(1, RED_BLUE).endswith("\nscore 7.31 → 7.29")
    small = ColourTest("class 3", Outcome(-0.19), Outcome(-0.2), Outcome(-0.14))
    assert small.title(-1, RED_BLUE).endswith("\nscore −0.19 → −0.14")
    tiny = ColourTest("class 3", Outcome(1.24e-4), Outcome(3.1e-5), None)
    assert tiny.title(1, RED_BLUE).endswith("\nscore 0.00012 → 0.00003")
    equal = ColourTest("class 3", Outcome(0.0), Outcome(-0.0001), None)
    assert equal.title(1, RED_BLUE).endswith("\nscore 0.0 → 0.0")


def test_a_colour_that_is_not_there_is_said_in_words() -> None:
    no_blue = ColourTest("cat", WHOLE, FALLEN, None, WHOLE)
    assert sentence(no_blue) == (
        f"{RED}cat falls from 98% to 11% (the same pattern elsewhere: 98%). "
        "No part was found that speaks against cat."
    )
    assert no_blue.shown == [1, 0]
    no_red = ColourTest("cat", Outcome(0.0, 0.5), None, RISEN)
    assert sentence(no_red) == (
        "Without the tenth of the photo that is marked strongest in blue, cat rises from 50% to "
        "99%. No part was found that speaks for cat."
    )
    assert no_red.shown == [-1]
    blank = ColourTest("cat", WHOLE, None, None)
    assert sentence(blank) == (
        "Nothing is coloured: no part of the photo was found that speaks for or against cat."
    )
    assert "no part of the signal" in blank.sentence(RED_BLUE, SIGNAL_WORDS)
    assert blank.shown == []


def test_what_the_model_does_not_confirm_is_said() -> None:
    test = ColourTest("cat", WHOLE, FALLEN, RISEN, refuted=(1,), removals=3)
    assert sentence(test).endswith(
        " Removing what is marked red does not lower the score by every kind of removal: read this "
        "map with care."
    )
    asked_once = ColourTest("cat", WHOLE, RISEN, FALLEN, refuted=(1, -1))
    assert sentence(asked_once).endswith(
        "Removing what is marked red does not lower the score: read this map with care. "
        "Removing what is marked blue does not raise the score: read this map with care."
    )
    assert "care" not in sentence(ColourTest("cat", WHOLE, FALLEN, RISEN))


@pytest.fixture(scope="module")
def explained() -> tuple[torch.nn.Module, torch.Tensor, Decomposition]:
    torch.manual_seed(0)
    model = nets.ResidualNet().eval()
    images = torch.randn(2, 3, 16, 16)
    found = dmbp.DMBP(model, iterations=2).explain(images, target=[[0, 1], [2]])
    return model, images, found


def test_the_numbers_are_the_models(
    explained: tuple[torch.nn.Module, torch.Tensor, Decomposition],
) -> None:
    model, images, d = explained
    outputs = model(images)
    tests = colour_tests(d, ["a", "b", "c"], activation="softmax")
    assert d.tested is not None
    for row, test in enumerate(tests):
        assert test is not None
        target, image = d.targets[row], d.image[row]
        assert isinstance(target, int)
        assert test.whole.score == pytest.approx(outputs[image, target].item(), rel=1e-4)
        assert test.whole.probability == pytest.approx(
            outputs[image].softmax(0)[target].item(), rel=1e-4
        )
        assert test.without_positive is not None
        without = d.tested.outputs_without_positive[row]
        assert test.without_positive.score == pytest.approx(without[target].item(), abs=1e-4)
        assert test.without_positive.probability == pytest.approx(
            without.softmax(0)[target].item(), rel=1e-4
        )
        assert test.without_control is not None
        without = d.tested.outputs_without_control[row]
        assert test.without_control.score == pytest.approx(without[target].item(), abs=1e-4)
        assert test.without_control.probability == pytest.approx(
            without.softmax(0)[target].item(), rel=1e-4
        )
        assert (test.without_negative is None) == (not d.tested.has_negative[row])
        assert test.refuted == (() if d.tested.is_confirmed[row] else (1,))


def test_without_an_activation_there_are_scores(
    explained: tuple[torch.nn.Module, torch.Tensor, Decomposition],
) -> None:
    *_, d = explained
    for test in colour_tests(d, ["a", "b", "c"]):
        assert test is not None
        assert test.whole.probability is None
    untested = d.read(reference="blur", combine="own_signs")
    assert colour_tests(untested, ["a", "b", "c"]) == [None] * 3


def test_a_refuted_map_is_called_that(
    explained: tuple[torch.nn.Module, torch.Tensor, Decomposition],
) -> None:
    *_, d = explained
    assert d.tested is not None
    rising = d.tested.change_without_positive.clone()
    rising[0, -1] = 1.0
    tested = replace(d.tested, change_without_positive=rising)
    test, *_ = colour_tests(replace(d, tested=tested), ["a", "b", "c"])
    assert test is not None
    assert test.refuted == (1,)
    assert "by every kind of removal: read this map with care" in sentence(test)


def test_the_control_of_a_function() -> None:
    """Its score is that of the outputs; a function that was loaded from a file is only a name."""
    torch.manual_seed(0)
    model, images = nets.ResidualNet().eval(), torch.randn(1, 3, 16, 16)
    d = dmbp.DMBP(model, iterations=2).explain(images, target=lambda outputs: 2 * outputs[1])
    assert d.tested is not None
    (test,) = colour_tests(d, ["twice"])
    assert test is not None
    assert test.without_control is not None
    expected = 2 * d.tested.outputs_without_control[0, 1].item()
    assert test.without_control.score == pytest.approx(expected)
    (loaded,) = colour_tests(replace(d, targets=("twice",)), ["twice"])
    assert loaded is not None
    assert loaded.without_positive is not None
    assert loaded.without_control is None
    assert "random" not in sentence(loaded)
