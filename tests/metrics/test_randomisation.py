"""Cascading randomisation against new copies of the model at each stage, and random logit."""

import copy

import pytest
import torch
from torch import Tensor, nn

from dmbp.attribution import METHODS
from dmbp.errors import InputError, ModelError
from dmbp.metrics import cascade, random_logit, rank_correlation
from tests import nets

IMAGES = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
    tail = nn.Flatten(), nn.Linear(256, 5)
    return nn.Sequential(first, nn.BatchNorm2d(4), nn.ReLU(), second, nn.ReLU(), *tail).eval()


def draw(model: nn.Module, names: list[str], generator: torch.Generator) -> nn.Module:
    """Return a copy whose layers are drawn one after the other."""
    fresh = copy.deepcopy(model)
    for name in names:
        layer = fresh.get_submodule(name)
        drawn = torch.randn(layer.weight.shape, generator=generator)
        layer.weight.data = drawn * layer.weight.std()
        layer.bias.data.zero_()
    return fresh


@pytest.mark.parametrize("method", ["gradient", "gradcam", "dmbp"])
@pytest.mark.parametrize("order", ["top_down", "bottom_up"])
def test_every_stage_is_that_of_a_new_model(model: nn.Module, method: str, order: str) -> None:
    """One explainer serves all stages, although it may have captured the model before."""
    names = ["6", "3", "0"] if order == "top_down" else ["0", "3", "6"]
    found = cascade(METHODS[method], model, IMAGES, [1, 2], order=order)
    assert found.layers == tuple(names)
    before = METHODS[method](model).attribute(IMAGES, target=[1, 2])
    for stage in range(3):
        random = draw(model, names[: stage + 1], torch.Generator().manual_seed(0))
        after = METHODS[method](random).attribute(IMAGES, target=[1, 2])
        expected = rank_correlation(before, after)
        torch.testing.assert_close(found.correlations[:, stage], expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.score, found.correlations.mean(1))


def test_stages_are_spread_over_the_layers(model: nn.Module) -> None:
    every = cascade(METHODS["gradient"], model, IMAGES, 1)
    two = cascade(METHODS["gradient"], model, IMAGES, 1, stages=2)
    assert two.layers == ("3", "0")
    assert torch.equal(two.correlations, every.correlations[:, 1:])
    assert cascade(METHODS["gradient"], model, IMAGES, 1, stages=9).layers == every.layers


def test_smooth_mprt_by_hand(model: nn.Module) -> None:
    found = cascade(METHODS["gradient"], model, IMAGES, 1, stages=1, samples=3, noise=0.1)
    generator = torch.Generator().manual_seed(0)
    width = 0.1 * torch.stack([image.max() - image.min() for image in IMAGES]).view(2, 1, 1, 1)
    copies = [IMAGES + width * torch.randn(3, 12, 12, generator=generator) for _ in range(3)]

    def mean_map(net: nn.Module) -> Tensor:
        maps = [METHODS["gradient"](net).attribute(images, target=1) for images in copies]
        return torch.stack(maps).mean(0)

    before = mean_map(model)
    after = mean_map(draw(model, ["6", "3", "0"], generator))
    torch.testing.assert_close(found.correlations[:, 0], rank_correlation(before, after))


def test_the_model_stays_as_it_was(model: nn.Module) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    cascade(METHODS["gradient"], model, IMAGES, 1)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    images = cascade(METHODS["gradient"], model, IMAGES[:1], 1).correlations
    torch.testing.assert_close(
        images, cascade(METHODS["gradient"], model, IMAGES, 1).correlations[:1]
    )


def test_random_logit_by_hand(model: nn.Module) -> None:
    def drawn(seed: int) -> int:
        return int(torch.randint(1, 5, (), generator=torch.Generator().manual_seed(seed)))

    seed = next(seed for seed in range(99) if drawn(seed) == 3)
    generator = torch.Generator().manual_seed(seed)
    found = random_logit(METHODS["gradient"], model, IMAGES, [1, 4], generator=generator)
    step = 3
    explainer = METHODS["gradient"](model)
    own = explainer.attribute(IMAGES, target=[1, 4])
    other = explainer.attribute(IMAGES, target=[(1 + step) % 5, (4 + step) % 5])
    torch.testing.assert_close(found, rank_correlation(own, other))
    random = random_logit(METHODS["random"], model, IMAGES, [1, 4])
    torch.testing.assert_close(random, torch.ones_like(random))  # it ignores the class


def test_what_cannot_be_randomised(model: nn.Module) -> None:
    with pytest.raises(InputError, match="there is no order 'up'"):
        cascade(METHODS["gradient"], model, IMAGES, 1, order="up")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="stages must be a whole number"):
        cascade(METHODS["gradient"], model, IMAGES, 1, stages=0)
    single = nn.Sequential(nn.Flatten(), nn.Linear(432, 1)).eval()
    with pytest.raises(InputError, match="two classes or more"):
        random_logit(METHODS["gradient"], single, IMAGES, 0)
    with pytest.raises(InputError, match="one class for each image"):
        random_logit(METHODS["gradient"], model, IMAGES, {1: 1.0, 2: -1.0})
    with pytest.raises(ModelError, match="no layer with a weight"):
        cascade(METHODS["random"], nn.Flatten().eval(), IMAGES, 1)


def test_a_layer_that_runs_twice_is_drawn_once() -> None:
    net = nets.ResidualNet().eval()
    images = torch.randn(1, 3, 16, 16)
    found = cascade(METHODS["gradient"], net, images, 0)
    assert len(set(found.layers)) == len(found.layers)
