"""Explanations replayed from a recording are those made step by step."""

import copy
import pickle
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn

from dmbp.attribution.dmbp import DMBP
from dmbp.decompose import decomposer
from dmbp.decompose.learn import initial_logits
from dmbp.engine import Logits
from dmbp.engine.plan.plan import ExecutionPlan
from dmbp.errors import InexactCapture
from tests import nets
from tests.engine.networks import Classes
from tests.tolerance import relative

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured graphs that tests make wrong on purpose are not kept for others."""
    monkeypatch.setenv("DMBP_CACHE", "off")


SAME = 1e-5
"""Single precision: the same operations, by kernels that may be chosen anew."""


class Capped(nn.Sequential):
    """An activation with offsets, after a depthwise convolution; it ends as MobileNet does."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU6(),
            nn.Conv2d(8, 8, 3, padding=1, groups=8),
            nn.ReLU6(),
            nn.Conv2d(8, 6, 1),
            nn.ReLU6(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(6, 5),
        )


def explainer(model: nn.Module, **settings: object) -> DMBP:
    torch.manual_seed(0)
    return DMBP(model.cuda().eval(), iterations=6, precision="float32", **settings)


def images(count: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(count, 3, 16, 16, generator=generator).cuda() for _ in range(4)]


@gpu
@pytest.mark.parametrize("make", [nets.ResidualNet, nets.VGGLike, nets.LeakyNet, Capped])
def test_a_recording_gives_what_it_was_not_recorded_with(make: Callable[[], nn.Module]) -> None:
    recorded = explainer(make())
    for number, inputs in enumerate(images()):
        target = [number % 3, 1]
        fresh = DMBP(recorded.linearizer.model, iterations=6, precision="float32")
        expected = fresh.explain(inputs, target=target)
        found = recorded.explain(inputs, target=target)
        assert recorded.is_recorded == (number > 0)
        for name in ("attribution", "positive_map", "output", "negative_output"):
            assert relative(getattr(found, name), getattr(expected, name)) <= SAME
        assert relative(found.history.nuisance, expected.history.nuisance) <= SAME
        assert torch.equal(found.inputs, inputs)
        assert found.targets == expected.targets


class Strided(nn.Sequential):
    """What libraries add up in any order, if they may: strides, and windows that overlap."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 64, 7, stride=2, padding=3),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 128, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(128, 256, 1, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(256 * 7 * 7, 5),
        )


@gpu
@pytest.mark.parametrize("rows", [1, 16])
def test_the_same_question_has_the_same_answer(rows: int) -> None:
    """Bit for bit, from a recording."""
    model = Strided().cuda().eval()
    inputs = torch.randn(rows, 3, 112, 112).cuda()
    explainer = DMBP(model, iterations=20)
    found = [explainer.explain(inputs, target=1) for _ in range(6)]
    for again in found[3:]:
        for name in ("positive_map", "negative_map", "positive_output", "negative_output"):
            assert torch.equal(getattr(again, name), getattr(found[2], name))
        assert torch.equal(again.history.positive, found[2].history.positive)


@gpu
def test_results_stay_when_the_recording_is_played_again() -> None:
    recorded = explainer(nets.ResidualNet())
    found = [recorded.explain(inputs, target=1) for inputs in images()[:3]]
    kept = found[1].attribution.clone(), found[1].output.clone()
    recorded.explain(images()[3], target=2)
    assert torch.equal(found[1].attribution, kept[0])
    assert torch.equal(found[1].output, kept[1])


@gpu
def test_a_model_that_changes_is_explained_as_it_is() -> None:
    model = nets.ResidualNet()
    recorded = explainer(model)
    first, second, third, _ = images()
    for inputs in (first, second):
        recorded.explain(inputs, target=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)  # in place, as an optimiser does
    expected = DMBP(model, iterations=6, precision="float32").explain(third, target=1)
    found = recorded.explain(third, target=1)
    assert relative(found.attribution, expected.attribution) <= SAME
    model.fc = nn.Linear(model.fc.in_features, model.fc.out_features).cuda().eval()
    expected = DMBP(model, iterations=6, precision="float32").explain(third, target=1)
    found = recorded.explain(third, target=1)
    assert relative(found.attribution, expected.attribution) <= SAME


@gpu
def test_a_recording_refuses_outputs_that_are_not_its_own() -> None:
    recorded = explainer(nets.ResidualNet())
    first, second, third, _ = images()
    for inputs in (first, second):
        recorded.explain(inputs, target=1)
    assert recorded.is_recorded
    outputs = recorded.linearizer.runner.outputs(third)
    with pytest.raises(InexactCapture):
        recorded.explain(third, target=1, outputs=outputs + 1)
    assert not recorded.is_recorded


@gpu
@pytest.mark.parametrize("rows", [2, 9])
def test_one_for_all_classes_where_these_are_channels_until_the_end(rows: int) -> None:
    recorded = explainer(Classes())
    for inputs in images(rows):
        for target in (1, 2):
            expected = explainer(recorded.linearizer.model).explain(inputs, target=target)
            found = recorded.explain(inputs, target=target)
            assert relative(found.attribution, expected.attribution) <= SAME
    assert recorded.is_recorded


@gpu
def test_an_operation_that_asks_the_cpu_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The capture fails half-way; what comes after must not notice."""
    recorded = explainer(nets.ResidualNet())
    expected = explainer(nets.ResidualNet()).explain(images()[2], target=1)

    def asking(plan: ExecutionPlan) -> Logits:
        assert plan.net.inputs.sum().item() != 0
        return initial_logits(plan)

    monkeypatch.setattr(sys.modules["dmbp.decompose.learn"], "initial_logits", asking)
    for inputs in images()[:2]:
        recorded.explain(inputs, target=1)
    assert not recorded.is_recorded
    for _ in range(2):
        found = recorded.explain(images()[2], target=1)
        assert relative(found.attribution, expected.attribution) <= SAME
    assert not recorded.is_recorded


@gpu
def test_memory_does_not_grow() -> None:
    recorded = explainer(nets.ResidualNet())
    held: list[int] = []
    for inputs in 3 * images():
        recorded.explain(inputs, target=1)
        held.append(torch.cuda.memory_allocated())
    assert set(held[3:]) == {held[2]}  # the second call records, and the third replays


def test_a_copy_records_for_itself() -> None:
    one = DMBP(nets.ResidualNet().eval(), iterations=2)
    inputs = torch.randn(1, 3, 16, 16)
    expected = one.attribute(inputs, target=1)
    for other in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert not other.is_recorded
        torch.testing.assert_close(other.attribute(inputs, target=1), expected)


class Quarters(nn.Sequential):
    """Each class is a quarter of the image, minus half of the next one.

    What windows are worth is far from a tie, so that 16 bits decide nothing.
    """

    def __init__(self, activation: type[nn.Module] = nn.ReLU) -> None:
        convolution, linear = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(16, 4, bias=False)
        super().__init__(convolution, activation(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), linear)
        with torch.no_grad():
            convolution.weight.abs_()
            eye = torch.eye(4)
            linear.weight.copy_((eye - 0.5 * eye.roll(1, 1)).repeat(1, 4))


def bright(count: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    found = [1 + torch.rand(count, 3, 32, 32, generator=generator) for _ in range(4)]
    return [images.cuda() if torch.cuda.is_available() else images for images in found]


def explainer_with_tests(model: nn.Module) -> DMBP:
    model = model.cuda() if torch.cuda.is_available() else model
    return DMBP(model.eval(), iterations=3)


def without_recording(explainer: DMBP) -> DMBP:
    fresh = DMBP(explainer.linearizer.model, iterations=3)
    fresh.linearizer = explainer.linearizer
    return fresh


def is_alike(found: DMBP, expected: DMBP, inputs: torch.Tensor, target: object) -> bool:
    """Whether both say the same about the colours, up to pixels at the edge of being red."""
    one, two = (k.explain(inputs, target=target).tested for k in (found, expected))  # type: ignore[arg-type]
    assert one is not None
    assert two is not None
    assert one.removals == two.removals
    for name, value in vars(one).items():
        assert not isinstance(value, torch.Tensor) or value.shape == getattr(two, name).shape
    pixels = [k.attribution.sum(1).flatten() for k in (one, two)]
    is_same = torch.corrcoef(torch.stack(pixels))[0, 1] > LEAST_CORRELATION
    worth = relative(one.worth_for, two.worth_for) < MOST_DIFFERENT_WORTH
    return bool(is_same) and worth and relative(one.outputs, two.outputs) <= SAME


LEAST_CORRELATION, MOST_DIFFERENT_WORTH = 0.85, 0.1
"""Windows are run in 16 bits, by kernels that may be chosen anew. For another class the correlation
is below 0."""


@gpu
@pytest.mark.parametrize("make", [Quarters, lambda: Quarters(nn.GELU)])
def test_a_recorded_test_finds_what_it_was_not_recorded_with(
    make: Callable[[], nn.Module],
) -> None:
    recorded = explainer_with_tests(make())
    for number, inputs in enumerate(bright()):
        target = [number, 1]
        assert is_alike(recorded, without_recording(recorded), inputs, target)
        assert recorded.is_recorded == (number > 0)
        assert recorded._tester.is_recorded == (number > 0)


@gpu
@pytest.mark.parametrize("change", ["in place", "through .data", "another tensor"])
def test_a_recorded_test_notices_other_weights(change: str) -> None:
    recorded = explainer_with_tests(Quarters())
    first, second, third, fourth = bright()
    for inputs in (first, second):
        recorded.explain(inputs, target=1)
    model = recorded.linearizer.model
    assert isinstance(model, nn.Module)
    with torch.no_grad():
        for parameter in model.parameters():
            if change == "in place":
                parameter.mul_(1.1)
            elif change == "through .data":
                parameter.data.mul_(1.1)
            else:
                parameter.data = 1.1 * parameter.data
    for inputs in (third, fourth, first, second):  # step by step, step by step, recorded, replayed
        assert is_alike(recorded, DMBP(model, iterations=3), inputs, 1)
    assert recorded._tester.is_recorded


@gpu
def test_a_recorded_test_notices_numbers_beyond_float16() -> None:
    """Outputs above 65,504 are computed in bfloat16, also of a question that is not the first."""
    recorded = explainer_with_tests(Quarters())
    first, second, third, _ = bright()
    for inputs in (first, second):
        recorded.explain(inputs, target=1)
    assert recorded._tester.is_recorded
    large = 1e6 * third
    assert is_alike(recorded, without_recording(recorded), large, 1)
    assert is_alike(recorded, without_recording(recorded), third, 1)


@gpu
@pytest.mark.parametrize("target", [{1: 1.0, 0: -1.0}, [[1], [2]], [[1, 2], [0, 1]]])
def test_other_targets_are_tested_as_without_a_recording(target: object) -> None:
    """A difference of classes, one target for each image, and two, which are not recorded."""
    recorded = explainer_with_tests(Quarters())
    for inputs in bright():
        recorded.explain(inputs, target=1)
        assert is_alike(recorded, without_recording(recorded), inputs, target)


@gpu
def test_a_test_that_needs_too_much_memory_is_not_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decomposer, "MAX_MEMORY_SHARE", 0.0)
    recorded = explainer_with_tests(Quarters())
    for inputs in bright():
        assert is_alike(recorded, without_recording(recorded), inputs, 1)
    assert not recorded.is_recorded
    assert not recorded._tester.is_recorded
