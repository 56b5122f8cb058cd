"""Models that end in an activation, and outputs with several dimensions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dmbp
from dmbp.errors import TargetError
from dmbp.linear.model.runner import ModelRunner
from dmbp.linear.model.wrappers import OneAtATime
from dmbp.metrics import insertion, removal
from tests import nets
from tests.tolerance import FLOAT32

ENDINGS = {
    "softmax": nn.Softmax(1),
    "sigmoid": nn.Sigmoid(),
    "log-softmax": nn.LogSoftmax(-1),
}

pytestmark = pytest.mark.filterwarnings("ignore:the model ends in a")


class Ending(nn.Module):
    """A network that ends in a function of its scores."""

    def __init__(self, end: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nets.ResidualNet()
        self.end = end
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.network(x))


@pytest.fixture
def images() -> Tensor:
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", ENDINGS)
@pytest.mark.parametrize("form", ["module", "program", "one at a time"])
def test_the_scores_before_a_last_activation_are_explained(
    name: str, form: str, images: Tensor
) -> None:
    model: Any = Ending(ENDINGS[name])
    given = model
    if form == "program":
        given = torch.export.export(model, (images,))
    if form == "one at a time":
        given = OneAtATime(model)
    with pytest.warns(UserWarning, match=f"ends in a {name}: the scores before it are explained"):
        net = dmbp.linearize(given, images, target=2)
    expected = dmbp.linearize(model.network, images, target=2)
    assert torch.allclose(net.value(), expected.value(), atol=FLOAT32)
    found, wanted = (
        dmbp.DMBP(one, preset="fast", iterations=3).attribute(images, target=2)
        for one in (given, model.network)
    )
    assert torch.allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize(
    "end",
    [
        lambda z: torch.sigmoid(z).clamp(1e-6, 1 - 1e-6),
        lambda z: F.softmax(z[:, :, None, None], dim=1).flatten(1),
        lambda z: z.sigmoid_(),
        lambda z: torch.cat([row.softmax(-1) for row in z.split(1)]),
    ],
)
def test_ways_to_write_a_last_activation(end: Any, images: Tensor) -> None:
    model = Ending(end)
    runner = ModelRunner(model)
    assert torch.allclose(runner.outputs(images), model.network(images), atol=FLOAT32)
    assert torch.allclose(
        runner.activation("softmax")(runner.outputs(images)), model(images), atol=FLOAT32
    )


@pytest.mark.parametrize(
    "end",
    [
        lambda z: 2 * torch.sigmoid(z),
        lambda z: z.softmax(0),
        lambda z: z * z.sigmoid(),
        lambda z: torch.cat([z.sigmoid()[:, :2], z[:, 2:]], 1),
    ],
)
def test_what_is_no_last_activation(end: Any, images: Tensor) -> None:
    model = Ending(end)
    runner = ModelRunner(model)
    assert torch.equal(runner.outputs(images), model(images))


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "none"])
@pytest.mark.parametrize("name", ENDINGS)
def test_metrics_score_the_models_own_probabilities(
    name: str, activation: Any, images: Tensor
) -> None:
    model = Ending(ENDINGS[name])
    maps = torch.randn(2, 1, 16, 16)
    own = "sigmoid" if name == "sigmoid" else "softmax"
    expected = insertion(model.network, images, 2, maps, activation=own)
    assert torch.allclose(insertion(model, images, 2, maps, activation=activation), expected)
    found = removal(model, images, 2, maps, activation=activation)
    wanted = removal(model.network, images, 2, maps, activation=own)
    assert torch.allclose(found.probability, wanted.probability)
    assert torch.allclose(found.score, wanted.score)


def test_a_function_given_as_activation_receives_what_the_model_returns(images: Tensor) -> None:
    model = Ending(nn.Softmax(1))
    maps = torch.randn(2, 1, 16, 16)
    found = insertion(model, images, 2, maps, activation=lambda outputs: outputs)
    assert torch.allclose(found, insertion(model, images, 2, maps, activation="none"))


@pytest.fixture
def segmenter() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1), nn.Softmax(1)
    ).eval()


def test_outputs_of_several_dimensions(segmenter: Any, images: Tensor, tmp_path: Path) -> None:
    scores = segmenter[:-1](images)
    explainer = dmbp.DMBP(segmenter)
    one = explainer.explain(images, target=(2, 5, 7))
    assert torch.allclose(one.output, scores[:, 2, 5, 7], atol=FLOAT32)
    region = explainer.explain(images, target=lambda o: o[2, 4:8, 4:8].mean())
    assert torch.allclose(region.output, scores[:, 2, 4:8, 4:8].mean((1, 2)), atol=FLOAT32)
    both = explainer.explain(images[:1], target=[(2, 5, 7), {(1, 2, 3): 1.0, (1, 2, 4): -1.0}])
    expected = torch.stack([scores[0, 2, 5, 7], scores[0, 1, 2, 3] - scores[0, 1, 2, 4]])
    assert torch.allclose(both.output, expected, atol=FLOAT32)
    both.save(tmp_path / "both.safetensors")
    assert dmbp.load(tmp_path / "both.safetensors").targets == both.targets
    probability = removal(segmenter, images, (2, 5, 7), one.attribution).probability
    assert torch.allclose(probability, segmenter(images)[:, 2, 5, 7], atol=FLOAT32)


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        (None, r"have shape \(4, 16, 16\): say what to explain, as a target such as \(0, 0, 0\)"),
        (3, r"so a target is a tuple of 3 numbers or a function of these outputs, not 3"),
        ((1, 2), r"so a target is a tuple of 3 numbers .* not \(1, 2\)"),
        ((9, 0, 0), r"target \(9, 0, 0\) is out of range: the outputs have shape \(4, 16, 16\)"),
    ],
)
def test_targets_that_do_not_fit(
    segmenter: nn.Module, images: Tensor, target: Any, sentence: str
) -> None:
    with pytest.raises(TargetError, match=sentence):
        dmbp.linearize(segmenter, images, target=target)
