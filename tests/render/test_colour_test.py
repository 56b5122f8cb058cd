"""The sentence below a picture says what the model said, and nothing more."""

from dataclasses import replace

import pytest
import torch

import dmbp
from dmbp.decompose import Decomposition
from dmbp.errors import InputError
from dmbp.render import PALETTES, ColourTest, Outcome
from dmbp.render.colour import RED_BLUE
from dmbp.render.colour_test import SIGNAL_WORDS, colour_tests
from tests import nets

WHOLE, FALLEN, RISEN = Outcome(3.9, 0.98), Outcome(-2.1, 0.11), Outcome(4.6, 0.991)


def sentence(test: ColourTest) -> str:
    return test.sentence(RED_BLUE)


def test_it_falls_without_red_and_rises_without_blue() -> None:
    test = ColourTest("cat", WHOLE, FALLEN, Outcome(9.0, 0.999))
    assert sentence(replace(test, whole=Outcome(0.0, 0.5))) == (
        "Without the red pixels, cat falls from 50% to 11%; "
        "without the blue ones, it rises to 100%."
    )
    assert test.title(1, RED_BLUE) == "without red: cat 98% → 11%"
    assert test.sentence(PALETTES["purple-orange"]).startswith("Without the purple pixels, cat")
    assert "without the orange ones" in test.sentence(PALETTES["purple-orange"])


def test_small_changes_come_with_scores() -> None:
    test = ColourTest("cat", WHOLE, FALLEN, RISEN)
    assert sentence(test).endswith("without the blue ones, it rises to 99% (score 3.9 → 4.6).")
    assert test.title(-1, RED_BLUE) == "without blue: cat 98% → 99%\n(score 3.9 → 4.6)"


def test_decimals_tell_numbers_apart() -> None:
    sure = ColourTest("cat", Outcome(7.3, 0.9993), Outcome(4.3, 0.987), Outcome(9.1, 0.99989))
    assert sentence(sure) == (
        "Without the red pixels, cat falls from 99.9% to 98.7% (score 7.3 → 4.3); without the blue "
        "ones, it rises to 100.0% (score 7.3 → 9.1)."
    )
    same = ColourTest("cat", Outcome(19.3, 1.0), Outcome(14.1, 1.0), None)
    assert sentence(same).startswith(
        "Without the red pixels, cat stays at 100% (score 19.3 → 14.1). Nothing is blue"
    )
    assert same.title(1, RED_BLUE) == "without red: score 19.3 → 14.1"


def test_a_probability_that_moves_against_its_score_shows_both() -> None:
    test = ColourTest("cat", Outcome(3.0, 0.6), Outcome(2.0, 0.8), None)
    assert "cat rises from 60% to 80% (score 3.0 → 2.0)." in sentence(test)


def test_scores_alone() -> None:
    test = ColourTest("class 3", Outcome(7.3), Outcome(-4.31), Outcome(1234.5))
    assert sentence(test) == (
        "Without the red pixels, the score of class 3 falls from 7.3 to −4.3; without the blue "
        "ones, it rises to 1,234."
    )
    assert test.title(1, RED_BLUE) == "without red: score 7.3 → −4.3"
    close = ColourTest("class 3", Outcome(7.31), Outcome(7.29), None)
    assert close.title(1, RED_BLUE) == "without red: score 7.31 → 7.29"
    small = ColourTest("class 3", Outcome(-0.19), Outcome(-0.2), Outcome(-0.14))
    assert small.title(-1, RED_BLUE) == "without blue: score −0.19 → −0.14"
    equal = ColourTest("class 3", Outcome(0.0), Outcome(-0.0001), None)
    assert equal.title(1, RED_BLUE) == "without red: score 0.0 → 0.0"


def test_a_colour_that_is_not_there_is_said_in_words() -> None:
    no_blue = ColourTest("cat", WHOLE, FALLEN, None)
    assert sentence(no_blue) == (
        "Without the red pixels, cat falls from 98% to 11%. "
        "Nothing is blue: no part of the photo speaks against cat."
    )
    assert no_blue.title(-1, RED_BLUE) == "no blue"
    no_red = ColourTest("cat", Outcome(0.0, 0.5), None, RISEN)
    assert sentence(no_red) == (
        "Without the blue pixels, cat rises from 50% to 99%. "
        "Nothing is red: no part of the photo speaks for cat."
    )
    blank = ColourTest("cat", WHOLE, None, None)
    assert sentence(blank) == "Nothing is coloured: no part of the photo speaks for or against cat."
    assert "no part of the signal" in blank.sentence(RED_BLUE, SIGNAL_WORDS)


def test_what_the_model_does_not_confirm_is_said() -> None:
    test = ColourTest("cat", WHOLE, FALLEN, RISEN, refuted=(1,), removals=3)
    assert sentence(test).endswith(
        " Removing the red pixels does not lower the score by every kind of removal: read this map "
        "with care."
    )
    asked_once = ColourTest("cat", WHOLE, RISEN, FALLEN, refuted=(1, -1))
    assert sentence(asked_once).endswith(
        "Removing the red pixels does not lower the score: read this map with care. "
        "Removing the blue pixels does not raise the score: read this map with care."
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
    tests = colour_tests(d, ["a", "b", "c"], activation="softmax", outputs=outputs)
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
    for outputs in (None, torch.zeros(1, 4), torch.zeros(4)):
        with pytest.raises(InputError, match="give outputs=model"):
            colour_tests(d, ["a", "b", "c"], activation="softmax", outputs=outputs)


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
